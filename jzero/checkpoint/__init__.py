"""Checkpoints: true global arrays by tree path, written atomically, loaded into any layout, checked on the way."""

from jzero.checkpoint.folder import Checkpoints, load_newest
from jzero.checkpoint.load import load, read_header
from jzero.checkpoint.match import Selection
from jzero.checkpoint.save import Saving, save

__all__ = ["Checkpoints", "Saving", "Selection", "load", "load_newest", "read_header", "save"]
