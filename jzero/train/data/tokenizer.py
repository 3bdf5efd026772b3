"""A `tokenizer.json`, through the library `tokenizers`: text becomes ids, and the file is known by its hash."""

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import numpy as np
from pydantic import BaseModel

from jzero.base.files import parse_json, read_bytes, why
from jzero.base.types import Json
from jzero.errors import ConfigError

_MOST_BYTES = 2**28
_USUAL_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


class Encoding(Protocol):
    """What is used of `tokenizers.Encoding`."""

    ids: list[int]


def ids_of(encoding: Encoding) -> np.ndarray:
    """The ids of a text: `uint32[length]`."""
    ids = encoding.ids
    return np.fromiter(ids, np.uint32, len(ids))


class _Library(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode_batch_fast(self, input: list[str], add_special_tokens: bool) -> list[Encoding]: ...
    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]: ...
    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...


class _Named(BaseModel):
    """A token as `tokenizer_config.json` may write it."""

    content: str


class _Config(BaseModel):
    """What is used of `tokenizer_config.json`."""

    bos_token: str | _Named | None = None
    eos_token: str | _Named | None = None
    pad_token: str | _Named | None = None
    unk_token: str | _Named | None = None
    chat_template: str | list[dict[str, str]] | None = None


def optional_package(name: str, what: str, extra: str = "data") -> ModuleType:
    """Imports a package that jzero does without for most things.

    Args:
        name: of the package.
        what: needs it, for the sentence that says so.
        extra: which installs it.

    Raises:
        ConfigError: it is not there.

    Example:
        >>> optional_package("no_such_package", "such a file")
        Traceback (most recent call last):
        jzero.errors.ConfigError: such a file needs the package no_such_package: pip install 'jzero[data]'.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ConfigError(f"{what} needs the package {package}: pip install 'jzero[{extra}]'.") from None


class Tokenizer:
    """A tokenizer, without special tokens around a text, truncation or padding.

    Args:
        path: a `tokenizer.json`, or a folder with one, as models have it.
        eos: the token that ends a document; by default that of `tokenizer_config.json` beside it, or a usual one.

    Attributes:
        path: the file.
        sha256: of the file, in hexadecimal digits.
        vocab_size: above every id.
        eos: the id of the token that ends a document.
        special: `bos_token` and the like, by name, where they are known.

    Raises:
        ConfigError: it cannot be read, or no token is known to end a document.
    """

    def __init__(self, path: Path, *, eos: str | None = None):
        self.path = path / "tokenizer.json" if path.is_dir() else path
        try:
            content = read_bytes(self.path, _MOST_BYTES)
        except (OSError, ValueError) as error:
            if path.is_dir() and (path / "tokenizer.model").exists():
                raise ConfigError(
                    f"{path} has a SentencePiece model only; save it with a tokenizer.json, as transformers' "
                    "AutoTokenizer.from_pretrained(...).save_pretrained(...) does."
                ) from None
            raise ConfigError(f"tokenizer: {self.path} cannot be read: {why(error)}.") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._library = _load(content, self.path)
        self._ids = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._ids.values(), default=-1) + 1
        self._config = _config_of(self.path.parent)
        found = {name: getattr(self._config, name) for name in _NAMED}
        self.special: Mapping[str, str] = {
            name: token.content if isinstance(token, _Named) else token for name, token in found.items() if token
        }
        self.eos = self._eos(eos)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of some texts, each by itself: `uint32[length]`."""
        return [ids_of(encoding) for encoding in self.encodings(texts)]

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """What the library makes of some texts, on all cores and without Python's lock."""
        return self._library.encode_batch_fast(list(texts), add_special_tokens=False)

    @property
    def marks_beginnings(self) -> bool:
        """Whether a text in two pieces has other ids than the whole, as where a mark is put before each text."""
        whole, first, second = self.encode(["one\ntwo", "one\n", "two"])
        return whole.tolist() != [*first.tolist(), *second.tolist()]

    @property
    def chat_template(self) -> str:
        """The template that makes a text of messages.

        Raises:
            ConfigError: there is none.
        """
        file = self.path.with_name("chat_template.jinja")
        if file.exists():
            try:
                return read_bytes(file, 2**20).decode()
            except (OSError, ValueError) as error:
                raise ConfigError(f"tokenizer: {file} cannot be read: {why(error)}.") from None
        template = self._config.chat_template
        if isinstance(template, list):  # several, by name
            template = next((one.get("template") for one in template if one.get("name") == "default"), None)
        if not template:
            raise ConfigError(
                f"{self.path.parent} has no chat template (chat_template.jinja, or `chat_template` in "
                "tokenizer_config.json), which records of `messages` need; take the folder of an instruction model, or "
                "records of `prompt` and `completion`."
            )
        return template

    def _eos(self, token: str | None) -> int:
        wanted = token or self.special.get("eos_token")
        if wanted is None:
            there = [usual for usual in _USUAL_EOS if usual in self._ids]
            if len(there) != 1:
                found = f"; it has {', '.join(there)}" if there else ""
                raise ConfigError(
                    f"{self.path} does not say which token ends a text; name it by --eos, or as `eos_token` in the "
                    f"tokenizer_config.json beside it{found}."
                )
            wanted = there[0]
        if wanted not in self._ids:
            raise ConfigError(
                f"{self.path} has no token {wanted!r}, which is to end a text; name another by --eos, or as "
                "`eos_token` in the tokenizer_config.json beside it."
            )
        return self._ids[wanted]


def _load(content: bytes, path: Path) -> _Library:
    package = optional_package("tokenizers", "a tokenizer.json")
    try:
        library = cast(_Library, package.Tokenizer.from_buffer(content))
    except Exception as error:  # the library raises no narrower one
        raise ConfigError(
            f"{path} is no tokenizer.json that tokenizers {package.__version__} reads: {why(error)}."
        ) from None
    library.no_truncation()
    library.no_padding()
    return library


def _config_of(folder: Path) -> _Config:
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return _Config()
    try:
        facts = parse_json(read_bytes(file, _MOST_BYTES), dict[str, Json])
        return _Config.model_validate({name: facts[name] for name in _Config.model_fields if name in facts})
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: {file} cannot be read: {why(error)}.") from None
