"""Names of a package that are loaded when they are first used (PEP 562), so that importing the package costs little."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes a package's `__getattr__` and `__dir__`.

    A name, once loaded, is an attribute like any other; a submodule is one too, as if the package had imported it. Type
    checkers do not follow this; a package imports the same names under `TYPE_CHECKING` for them, and calls this where
    they do not look.

    Args:
        package: the package's `__name__`.
        names: the names that it shows, by the module that has them. A module that is the package's own submodule of
            that name is given no names: it is shown itself.

    Returns:
        The two functions.

    Example:
        >>> get, names = lazy_names("jzero", {"jzero.base.units": ["format_bytes"], "jzero.plan": []})
        >>> get("format_bytes")(1e9), "format_bytes" in names(), get("plan").__name__
        ('1 GB', True, 'jzero.plan')
    """
    homes = {name: module for module, some in names.items() for name in some}
    submodules = {module.removeprefix(f"{package}."): module for module, some in names.items() if not some}

    def __getattr__(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(submodules[name])
        if name not in homes:
            if name.startswith("_") or importlib.util.find_spec(f"{package}.{name}") is None:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules})

    return __getattr__, __dir__
