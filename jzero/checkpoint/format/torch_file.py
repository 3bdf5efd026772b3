"""Reading torch state dicts, with torch's own reader for weights alone, which runs nothing that a file says."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jzero.base.files import open_file, why
from jzero.checkpoint.format.safetensors import NAMES, Entry
from jzero.errors import CheckpointError

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

_OLDER = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of the format begin that torch wrote before version 1.6: a pickled number."""

_MOST_PICKLE = 100_000_000
"""Bytes of the part that says which tensors there are."""


class _Refused(ValueError):
    """What jzero itself has against a file."""


def open_torch(file: Path) -> dict[str, Entry]:
    """Opens a state dict that `torch.save` wrote: its tensors by name.

    Raises:
        CheckpointError: PyTorch is not there, or the file holds anything but tensors by name.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CheckpointError(
            f"{file} is a torch state dict, which needs PyTorch: pip install 'jzero[torch]'."
        ) from None
    try:
        mapped = _is_archive(file)
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        if not isinstance(tensors, Mapping):
            raise _Refused(f"it holds a {type(tensors).__name__}, not tensors by name")
        return {name: _entry(name, tensor) for name, tensor in tensors.items()}
    except Exception as error:  # torch, pickle and the file system each have their own
        raise CheckpointError(f"{file} cannot be read as a torch state dict: {_reason(file, error)}.") from error


def _is_archive(file: Path) -> bool:
    """Whether a file is of the present format, whose tensors need not be in memory together; not of the older one."""
    with open_file(file) as opened:
        if not zipfile.is_zipfile(opened):
            return False
        with zipfile.ZipFile(opened) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise _Refused(f"{info.filename} in it is compressed, which torch.save does not do")
                if info.filename.endswith("/data.pkl") and info.file_size > _MOST_PICKLE:
                    raise _Refused(f"{info.filename} in it has {info.file_size} bytes")
    return True


def _entry(name: object, tensor: "torch.Tensor") -> Entry:
    dtype = str(getattr(tensor, "dtype", None)).removeprefix("torch.")
    if not isinstance(name, str) or dtype == "None":
        raise _Refused(f"{name!r} in it is a {type(tensor).__name__}, and only tensors by name are read")
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if dtype not in NAMES or layout != "torch.strided":
        raise _Refused(f"{name} is a {dtype} tensor ({layout}), which jzero does not read")
    return Entry(name, tuple(tensor.shape), dtype, lambda: [_array(tensor, dtype)], lambda: _array(tensor, dtype))


def _array(tensor: "torch.Tensor", dtype: str) -> np.ndarray:
    if getattr(tensor, "requires_grad", False):  # a parameter
        tensor = tensor.detach()
    if jnp.dtype(dtype).isbuiltin == 1:
        return tensor.numpy()
    import torch  # pyright: ignore[reportMissingImports]

    bits = torch.uint8 if tensor.element_size() == 1 else torch.int16
    return tensor.contiguous().view(bits).numpy().view(jnp.dtype(dtype))


def _reason(file: Path, error: Exception) -> str:
    """What torch found, without its advice to read the file in the way that runs what it says."""
    if isinstance(error, OSError | _Refused):
        return why(error)
    try:
        with open_file(file) as opened:
            written = opened.read(len(_OLDER)) == _OLDER or zipfile.is_zipfile(opened)
        if not written:
            return "torch.save did not write it, or not all of it is there"
    except (OSError, ValueError) as failure:
        return why(failure)
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds more than tensors ({found[1]}), and reading that could run code"
    if "weights_only" in str(error):
        return "it holds more than tensors, and reading that could run code"
    return why(error)
