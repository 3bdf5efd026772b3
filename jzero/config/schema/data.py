"""`data` of a run file: which text, how it is cut into rows, and mixtures of several."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.building import build
from jzero.config.schema.scalars import (
    LARGEST_REAL,
    Fraction,
    Positive32,
    Switch,
    Text,
    Texts,
    choice,
    is_auto,
    real,
    shown,
)
from jzero.config.schema.section import Section
from jzero.errors import ConfigError

SOURCES = ("stdlib", "text", "tokens", "jsonl")
BYTES = ("stdlib", "text")
"""The sources whose tokens are bytes."""

PACKINGS = ("concatenate", "best_fit")

_TWINS = {
    "validation_split": "validation_share",
    "max_length": "seq_len",
    "max_seq_length": "seq_len",
    "block_size": "seq_len",
    "train_files": "files",
    "data_files": "files",
    "dataset": "source",
    "text_field": "field",
    "dataset_text_field": "field",
    "packing_strategy": "packing",
    "interleave": "mixture",
}


class SourceConfig(Section):
    """One text.

    Attributes:
        source: `stdlib` (the Python standard library), `text` (files as bytes), `tokens` (files that `jzero tokenize`
            made) or `jsonl` (records, tokenised at the start of the run).
        files: globs, relative to the run file.
        tokenizer: a `tokenizer.json`, or a folder with one, relative to the run file: makes the tokens of `jsonl`, and
            must be the one that made `tokens`.
        field: of a record of `jsonl`, the one that has the text.
        packing: `concatenate` (and split) or `best_fit`; by default the latter for `jsonl`.
        document_mask: whether documents in one row do not see each other, as they never do with `best_fit`.
    """

    synonyms: ClassVar[Mapping[str, str]] = _TWINS

    source: Annotated[str, choice(*SOURCES)] = "stdlib"
    files: Texts = ()
    tokenizer: Text | None = None
    field: Text | None = None
    packing: Annotated[str | None, choice(*PACKINGS)] = None
    document_mask: Switch | None = None

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """What belongs to a source, and what does not."""
        source = values.get("source", "stdlib")
        yield from _autos(values)
        if (source != "stdlib") != bool(values.get("files")):
            wanted = ", ".join(f'"{name}"' for name in SOURCES[1:])
            yield "files", f"must list globs when `source` is one of {wanted}, and only then"
        if source in BYTES and "tokenizer" in values:
            yield "tokenizer", f'has no effect: the tokens of `source` "{source}" are bytes; take "tokens" or "jsonl"'
        if source == "jsonl" and not values.get("tokenizer"):
            yield "tokenizer", 'is missing: `source` "jsonl" needs a tokenizer.json, or a folder with one'
        if source != "jsonl" and "field" in values:
            yield "field", 'has no effect: it belongs to `source` "jsonl"'
        if values.get("packing") == "best_fit" and values.get("document_mask") is False:
            yield "document_mask", 'cannot be false where `packing` is "best_fit"'
        if values.get("packing") is None and source == "jsonl" and values.get("document_mask") is False:
            yield "document_mask", 'cannot be false with best fit, the default of "jsonl"; add `packing`: "concatenate"'

    @property
    def packs(self) -> str:
        """How rows are made."""
        return self.packing or ("best_fit" if self.source == "jsonl" else "concatenate")

    @property
    def keeps_apart(self) -> bool:
        """Whether documents in one row do not see each other."""
        return self.packs == "best_fit" or self.document_mask is True


class PartConfig(SourceConfig):
    """One text of a mixture, with its weight."""

    weight: Annotated[float, real(1e-6, LARGEST_REAL)] = 1.0


def _autos(values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    names = (name for name, value in values.items() if is_auto(value))
    return ((name, 'must be a value: "auto" belongs into the DeepSpeed part') for name in names)


def _parts(value: Json) -> tuple[PartConfig, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f'must be a list of objects such as {{"source": "tokens", ...}}, got {shown(value)}')
    parts = []
    for number, item in enumerate(value):
        if not isinstance(item, Mapping | PartConfig):
            raise ValueError(f"must be a list of objects, got {shown(item)} as entry {number}")
        try:
            parts.append(item if isinstance(item, PartConfig) else build(PartConfig, item, file=f"entry {number}"))
        except ConfigError as error:
            raise ValueError(f"is wrong in {error}") from None
    if max(part.weight for part in parts) > 512 * min(part.weight for part in parts):
        raise ValueError("has weights of which one is more than 512 times another, which is too little to be kept to")
    return tuple(parts)


class DataConfig(SourceConfig):
    """`data`: one text, or a `mixture` of several, and how long rows are.

    Example:
        >>> DataConfig(source="text", files=("*.txt",), seq_len=32).packs
        'concatenate'
    """

    seq_len: Positive32 = 256
    validation_share: Fraction = 0.05
    mixture: Annotated[tuple[PartConfig, ...], PlainValidator(_parts)] | None = None

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """A mixture's parts say what the text would."""
        if values.get("mixture") is None:
            yield from super().complaints(values)
            return
        yield from _autos(values)
        for name in SourceConfig.model_fields:
            if name in values:
                yield name, "belongs into the entries of `mixture`"

    @property
    def parts(self) -> tuple[PartConfig, ...]:
        """The texts, each with its weight."""
        if self.mixture is not None:
            return self.mixture
        given = self.model_fields_set & SourceConfig.model_fields.keys()
        return (PartConfig(**{name: getattr(self, name) for name in given}),)
