"""Parameters that a Flax NNX module holds under several names: they are one leaf, and the other names are aliases."""

from collections.abc import Iterator, Mapping

from flax import nnx


def tied_names(module: nnx.Module) -> dict[str, str]:
    """The further names of parameters that a module holds more than once.

    Args:
        module: made, or being traced.

    Returns:
        Dotted name -> the dotted name under which the parameter is a leaf of the module's state.

    Example:
        >>> class Tied(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.embed, self.head = nnx.Embed(5, 3, rngs=rngs), nnx.Linear(3, 5, use_bias=False, rngs=rngs)
        ...         self.head.kernel = self.embed.embedding
        >>> tied_names(Tied(nnx.Rngs(0)))
        {'head.kernel': 'embed.embedding'}
    """
    leaves = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(module, nnx.Param))}
    names: dict[int, list[str]] = {}
    for name, param in _params(module, "", ()):
        names.setdefault(id(param), []).append(name)
    aliases = {}
    for same in names.values():
        leaf = next((name for name in same if name in leaves), same[0])
        aliases |= {name: leaf for name in same if name != leaf}
    return aliases


def _params(node: object, name: str, around: tuple[int, ...]) -> Iterator[tuple[str, nnx.Param]]:
    """Every way to every parameter; a module that holds one around it leads nowhere new."""
    if isinstance(node, nnx.Param):
        yield name, node
    elif id(node) not in around:
        inside: Mapping[str, object] | Mapping[int, object] = {}
        if isinstance(node, Mapping):
            inside = node
        elif isinstance(node, list | tuple | nnx.List):
            inside = dict(enumerate(node))
        elif isinstance(node, nnx.Pytree):
            inside = vars(node)
        for key, value in inside.items():
            yield from _params(value, f"{name}.{key}" if name else str(key), (*around, id(node)))
