"""The sizes of published models, by name: what a run file's `model` part says as `"size"`. No weights.

Sources, in the order of `SIZES`:

- gpt2: the four checkpoints that OpenAI released with GPT-2 (Radford et al. 2019), 1024 tokens, 50,257 token ids.
- gpt3: Brown et al. 2020, table 2.1, with its 2048 tokens and GPT-2's token ids; blocks are those of this package's
  GPT, without sparse attention. Two rows of the table do not multiply out and are taken as they were meant: the XL has
  16 heads of 128, the 13B a width of 5120.
- llama-2: Touvron et al. 2023 and the released `params.json` files. llama-3: "The Llama 3 Herd of Models", table 3.
- vit: Dosovitskiy et al. 2021, table 1, at 224 pixels. resnet: He et al. 2016, table 1, in the form known as v1.5.
"""

import difflib
from collections.abc import Mapping

from jzero.base.types import Json
from jzero.errors import ConfigError


def _gpt(seq_len: int, d_model: int, n_layer: int, n_head: int) -> dict[str, Json]:
    shape = {"vocab_size": 50257, "seq_len": seq_len, "d_model": d_model, "n_layer": n_layer, "n_head": n_head}
    return {"family": "gpt", **shape, "scan_layers": True}


def _llama(version: int, d_model: int, n_layer: int, n_head: int, n_kv_head: int, d_ff: int) -> dict[str, Json]:
    text = {2: {"vocab_size": 32000, "seq_len": 4096}, 3: {"vocab_size": 128256, "seq_len": 8192}}[version]
    heads = {"n_head": n_head, "n_kv_head": n_kv_head, "d_ff": d_ff}
    theta = {} if version == 2 else {"rope_theta": 500000.0}
    return {"family": "llama", **text, "d_model": d_model, "n_layer": n_layer, **heads, **theta, "scan_layers": True}


def _vit(patch_size: int, d_model: int, n_layer: int, n_head: int) -> dict[str, Json]:
    image = {"image_size": 224, "patch_size": patch_size, "n_classes": 1000}
    return {"family": "vit", **image, "d_model": d_model, "n_layer": n_layer, "n_head": n_head, "scan_layers": True}


SIZES: Mapping[str, Mapping[str, Json]] = {
    "gpt2": _gpt(1024, 768, 12, 12),
    "gpt2-medium": _gpt(1024, 1024, 24, 16),
    "gpt2-large": _gpt(1024, 1280, 36, 20),
    "gpt2-xl": _gpt(1024, 1600, 48, 25),
    "gpt3-125m": _gpt(2048, 768, 12, 12),
    "gpt3-350m": _gpt(2048, 1024, 24, 16),
    "gpt3-760m": _gpt(2048, 1536, 24, 16),
    "gpt3-1.3b": _gpt(2048, 2048, 24, 16),
    "gpt3-2.7b": _gpt(2048, 2560, 32, 32),
    "gpt3-6.7b": _gpt(2048, 4096, 32, 32),
    "gpt3-13b": _gpt(2048, 5120, 40, 40),
    "gpt3-175b": _gpt(2048, 12288, 96, 96),
    "llama-2-7b": _llama(2, 4096, 32, 32, 32, 11008),
    "llama-2-13b": _llama(2, 5120, 40, 40, 40, 13824),
    "llama-2-70b": _llama(2, 8192, 80, 64, 8, 28672),
    "llama-3-8b": _llama(3, 4096, 32, 32, 8, 14336),
    "llama-3-70b": _llama(3, 8192, 80, 64, 8, 28672),
    "vit-b-16": _vit(16, 768, 12, 12),
    "vit-l-16": _vit(16, 1024, 24, 16),
    "resnet50": {"family": "resnet", "depth": 50, "n_classes": 1000},
}
"""Name -> a `model` part. Layers of transformers are scanned, which compiles fast at any depth."""


def with_size(model: Mapping[str, Json]) -> dict[str, Json]:
    """A `model` part with its `size` spelt out; one without a size comes back as it is.

    Args:
        model: may have `size`, a name in `SIZES`. What stands beside it takes the place of the size's own.

    Raises:
        ConfigError: an unknown size, with the nearest known one, or a `family` that is not the size's.

    Example:
        >>> with_size({"size": "gpt2-xl", "remat": True})["n_layer"]
        48
    """
    if "size" not in model:
        return dict(model)
    name, rest = model["size"], {key: value for key, value in model.items() if key != "size"}
    if name not in SIZES:
        close = difflib.get_close_matches(str(name).lower(), SIZES, n=1, cutoff=0.5)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"model.size is {name!r}{meant}; known sizes: {', '.join(SIZES)}.")
    size = SIZES[name]
    if rest.get("family", size["family"]) != size["family"]:
        raise ConfigError(f"model.family is {rest['family']!r}, and model.size {name!r} is a {size['family']}.")
    return {**size, **rest}
