"""`jzero`: what DeepSpeed has no key for. DeepSpeed ignores the section, so one file serves both."""

from jzero.config.section import Section


class Extensions(Section):
    """The top-level section `jzero`."""
