"""Checkpoints: true global arrays by tree path, written atomically, loaded into any layout, checked on the way."""

from jzero.checkpoint.run.folder import Checkpoints, load_newest
from jzero.checkpoint.run.loading import load, read_header
from jzero.checkpoint.run.saving import Saving, save
from jzero.checkpoint.run.selection import Selection

__all__ = ["Checkpoints", "Saving", "Selection", "load", "load_newest", "read_header", "save"]
