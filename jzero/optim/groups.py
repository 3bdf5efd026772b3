"""Parameter groups: which entry of `jzero.param_groups` a parameter belongs to, and what follows for its update.

A group is two numbers per parameter, read while the step is traced; the optimizer's state is the same with or without.
"""

import difflib
import re
from collections.abc import Callable, Collection, Sequence

import jax
import optax
from jax.tree_util import KeyPath

from jzero.config.schema.param_groups import ParamGroup
from jzero.errors import ConfigError
from jzero.sharding.placement import path_name

OfName = Callable[[str], ParamGroup | None]


def assign(groups: Sequence[ParamGroup], names: Collection[str]) -> dict[str, ParamGroup]:
    """Gives each parameter the first entry whose expression is found in its name.

    Args:
        groups: the entries.
        names: dotted names of the parameters that are trained.

    Returns:
        Name -> entry, for the parameters that have one.

    Raises:
        ConfigError: an entry is left without parameters.

    Example:
        >>> groups = [ParamGroup(match="bias", weight_decay=0.0), ParamGroup(match="^embed", lr_multiplier=0.1)]
        >>> {name: group.match for name, group in assign(groups, ["embed.table", "out.bias", "out.kernel"]).items()}
        {'embed.table': '^embed', 'out.bias': 'bias'}
    """
    found = {name: [i for i, group in enumerate(groups) if re.search(group.match, name)] for name in names}
    chosen = {name: matching[0] for name, matching in found.items() if matching}
    for i, group in enumerate(groups):
        if i not in chosen.values():
            shadowed = [name for name, matching in found.items() if i in matching]
            why = (
                f"matches only parameters that entries before it take, such as {shadowed[0]}; put it before them"
                if shadowed
                else f"matches no parameter that is trained; there are {_some(names, group.match)}"
            )
            raise ConfigError(f"jzero.param_groups: entry {i}, match = {group.match!r}, {why}.")
    return {name: groups[i] for name, i in chosen.items()}


def _some(names: Collection[str], match: str) -> str:
    """The names that are nearest to an expression, or the first ones."""
    words = re.sub(r"\W+", ".", match).strip(".")
    near = difflib.get_close_matches(words, names, n=5, cutoff=0.3)
    return ", ".join(near or list(names)[:5]) + ", ..." * (len(names) > len(near or list(names)[:5]))


def add_decayed_weights(decay: float, of_name: OfName) -> optax.GradientTransformation:
    """Adds weight_decay * parameter, with the decay of each parameter's group.

    Args:
        decay: of parameters without a group, or whose group has none.
        of_name: dotted name -> group.
    """

    def decayed(path: KeyPath, update: jax.Array, param: jax.Array) -> jax.Array:
        group = of_name(path_name(path))
        own = decay if group is None or group.weight_decay is None else group.weight_decay
        return update + own * param if own else update

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(decayed, updates, params))


def scale_by_multiplier(of_name: OfName) -> optax.GradientTransformation:
    """Scales each update by the `lr_multiplier` of its parameter's group.

    Args:
        of_name: dotted name -> group.
    """

    def scaled(path: KeyPath, update: jax.Array) -> jax.Array:
        group = of_name(path_name(path))
        return update if group is None or group.lr_multiplier == 1 else update * group.lr_multiplier

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scaled, updates))
