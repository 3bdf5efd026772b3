"""Checkpoints: true global arrays by tree path, written atomically, loaded into any layout, checked on the way."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.checkpoint.run.folder import Checkpoints, load_newest
    from jzero.checkpoint.run.loading import load, read_header
    from jzero.checkpoint.run.saving import Saving, save
    from jzero.checkpoint.run.selection import Selection
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.checkpoint.run.folder": ("Checkpoints", "load_newest"),
            "jzero.checkpoint.run.loading": ("load", "read_header"),
            "jzero.checkpoint.run.saving": ("Saving", "save"),
            "jzero.checkpoint.run.selection": ("Selection",),
        },
    )

__all__ = ["Checkpoints", "Saving", "Selection", "load", "load_newest", "read_header", "save"]
