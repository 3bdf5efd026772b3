"""Rematerialisation for any Flax model: the chosen modules recompute in the backward pass what they computed before.

It is switched on from outside, as a property of the model and not of its code. Names, shapes and values of parameters
and state stay what they were.

A Linen module does not exist before it is called, so the calls of its parts are intercepted (`nn.intercept_methods`)
and run under `nn.remat`. NNX intercepts no calls, and Python looks `__call__` up in the class of a module: so a chosen
module's class is replaced by a subclass whose `__call__` runs under `jax.checkpoint`. A wrapper around the module would
rename its parameters; a class survives every transform that takes modules apart and puts them together again.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias, TypeVar, cast

import jax
from flax import linen as nn
from flax import nnx

from jzero.base.types import PyTree
from jzero.errors import ModelError
from jzero.jaxpr.policies import OFFLOAD, POLICIES, named_inputs

M = TypeVar("M")
Args: TypeAlias = tuple[PyTree, ...]
Kwargs: TypeAlias = dict[str, PyTree]
Traced: TypeAlias = jax.Array | nn.Module | nnx.Pytree | nnx.Variable
Policy = str | Callable | None
Modules = str | type | Iterable[str | type]


def remat(model: M, modules: Modules, policy: Policy = None) -> M:
    r"""Switches rematerialisation on: each chosen module keeps its inputs and computes the rest again when needed.

    Args:
        model: a function `rngs -> NNX module`, an NNX module, or a Linen module.
        modules: which of its modules: one of these or several: a class (subclasses count); the name of a class; a
            regular expression for the whole dotted path, such as `h\\.\\d+`. Their `__call__` is what is recomputed.
        policy: what is kept besides: None for nothing; the name of one of `jax.checkpoint_policies` that takes no
            arguments; `"offload"` to keep nothing on the device, since the inputs too are moved to host memory; or such
            a policy itself.

    Returns:
        The same kind of thing as `model`, which itself stays as it was. An NNX module's variables are copied, the
        arrays in them are not.

    Raises:
        ModelError: if `model` has no Flax modules, a policy or a pattern is none, or nothing matches. For a function
            that is known when it is called, for a Linen module when its `__call__` has run.

    Example:
        >>> import jax.numpy as jnp
        >>> from jzero import jaxpr
        >>> mlp = nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
        >>> model = remat(mlp, "Linear")
        >>> [jaxpr.name_of(eqn) for eqn in jaxpr.equations(jax.make_jaxpr(model)(jnp.ones((2, 4))))]
        ['remat2', 'tanh', 'remat2']
    """
    choice = _Choice(_entries(modules), _policy(policy))
    if isinstance(model, nn.Module):
        return _linen(model, choice)
    if isinstance(model, nnx.Module):
        return _nnx(nnx.clone(model), choice)
    if callable(model) and not hasattr(model, "init"):
        return cast(M, functools.wraps(model)(lambda rngs: _nnx(model(rngs), choice)))
    raise ModelError(
        f"remat: the model is {type(model).__name__} {getattr(model, '__name__', '')}".rstrip()
        + ", not a Flax module or a function that makes one; jax.checkpoint in the loss function does the same for it."
    )


class _Choice(NamedTuple):
    """What is recomputed, and how."""

    entries: tuple[str | type, ...]
    policy: Callable | None

    def matched(self, path: str, kind: type) -> set[str | type]:
        """The entries that choose a module."""
        names = {base.__name__ for base in kind.__mro__}
        return {
            entry
            for entry in self.entries
            if (issubclass(kind, entry) if isinstance(entry, type) else entry in names or re.fullmatch(entry, path))
        }

    def check(self, seen: Mapping[str, type]) -> None:
        """Refuses entries that choose none of the modules seen, by path."""
        idle = set(self.entries).difference(*(self.matched(path, kind) for path, kind in seen.items()))
        if idle:
            paths: dict[str, list[str]] = {}
            for path, kind in sorted(seen.items()):
                paths.setdefault(kind.__name__, []).append(path or "the model itself")
            known = [f"{name} ({', '.join(p[:3])}{', …' * (len(p) > 3)})" for name, p in paths.items()]
            raise ModelError(
                f"remat: no module is {' or '.join(sorted(map(_shown, idle)))}, neither by class nor by path; "
                f"the model has {', '.join(known)}."
            )


def _entries(modules: Modules) -> tuple[str | type, ...]:
    entries = (modules,) if isinstance(modules, str | type) else tuple(modules)
    for entry in entries:
        if not isinstance(entry, str | type):
            raise ModelError(f"remat: modules must be classes, names of classes or patterns of paths, not {entry!r}.")
        try:
            re.compile(entry if isinstance(entry, str) else "")
        except re.error as error:
            raise ModelError(f"remat: {entry!r} is no regular expression: {error}.") from None
    if not entries:
        raise ModelError("remat: modules is empty; name at least one class or path.")
    return entries


def _policy(policy: Policy) -> Callable | None:
    if isinstance(policy, str) and policy not in POLICIES:
        raise ModelError(f"remat: no policy is named {policy!r}; known are {', '.join(POLICIES)}.")
    return POLICIES[policy] if isinstance(policy, str) else policy


def _shown(entry: str | type) -> str:
    return entry.__name__ if isinstance(entry, type) else repr(entry)


def _traced(args: Args, kwargs: Kwargs, is_node: Callable[[object], bool]) -> tuple[list[Traced], Callable]:
    """Splits the arguments of a call: arrays and modules, which a transform must see, and how to put all together."""
    leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_node)
    seen = [is_node(x) or isinstance(x, jax.Array) for x in leaves]

    def together(traced: Sequence[Traced]) -> tuple[Args, Kwargs]:
        given = iter(traced)
        return treedef.unflatten([next(given) if s else x for x, s in zip(leaves, seen, strict=True)])

    return [x for x, s in zip(leaves, seen, strict=True) if s], together


def _nnx(module: M, choice: _Choice) -> M:
    if not isinstance(module, nnx.Module):
        return module  # whoever asked for a module says so
    parts = {".".join(map(str, path)): part for path, part in nnx.iter_modules(module) if callable(part)}
    kinds = {path: _original(part) for path, part in parts.items()}
    choice.check(kinds)
    for path, part in parts.items():
        if choice.matched(path, kinds[path]):
            object.__setattr__(part, "__class__", _recomputing(kinds[path], choice.policy))
    return module


@functools.cache  # two modules made alike must have the same class, or NNX would take them for different graphs
def _recomputing(cls: type, policy: Callable | None) -> type:
    """A class like `cls` whose `__call__` is recomputed in the backward pass."""

    def call(self: nnx.Module, *args: object, **kwargs: object) -> object:
        traced, together = _traced(args, kwargs, lambda x: isinstance(x, nnx.Pytree | nnx.Variable))
        nodes = [self, *(None if isinstance(x, jax.Array) else x for x in traced)]
        graphdef, state = nnx.split(nodes)

        def run(state: nnx.State, arrays: list[jax.Array]) -> tuple[PyTree, nnx.State]:
            inside, arrays = nnx.merge(graphdef, state), named_inputs(arrays) if policy is OFFLOAD else arrays
            before = {path: _raw(x) for path, x in nnx.to_flat_state(nnx.state(inside))}
            given = iter(arrays)
            args, kwargs = together([next(given) if node is None else node for node in inside[1:]])
            result = cls.__call__(inside[0], *args, **kwargs)
            after = nnx.to_flat_state(nnx.state(inside))
            return result, nnx.from_flat_state([(p, v) for p, v in after if _raw(v) is not before.get(p)])

        # Only what has changed comes back: parameters do not, and so need not be whole once the module has run.
        result, changed = jax.checkpoint(run, policy=policy)(state, [x for x in traced if isinstance(x, jax.Array)])
        if changed:
            nnx.update(nodes, changed)
        return result

    return _subclass(cls, __call__=functools.update_wrapper(call, cls.__call__))


def _raw(x: nnx.Variable | jax.Array) -> object:
    """What a variable holds; a module may hold a plain array too."""
    return x.get_raw_value() if isinstance(x, nnx.Variable) else x


def _subclass(cls: type, **methods: object) -> type:
    """A class that differs from `cls` in some methods and passes for it."""
    namespace = {"__doc__": cls.__doc__, "__module__": cls.__module__, "_recomputed": cls, **methods}
    metaclass = cast(Callable[[str, tuple[type], dict[str, object]], type], type(cls))
    return metaclass(cls.__name__, (cls,), namespace)


def _original(module: object) -> type:
    """The class of a module before anything here changed it."""
    return getattr(type(module), "_recomputed", type(module))


_intercepted: ContextVar[bool] = ContextVar("intercepted", default=False)


def _linen(model: nn.Module, choice: _Choice) -> nn.Module:
    """A model of a subclass, whose methods run with the calls of its modules intercepted."""
    cls, choices = _original(model), (*getattr(model, "_choices", ()), choice)
    seen: dict[str, type] = {}
    running: set[int] = set()

    def intercept(next_call: Callable, args: Args, kwargs: Kwargs, context: nn.module.InterceptorContext) -> PyTree:
        module = context.module
        # The class that nn.scan, nn.remat and their like make calls a module of the original class inside.
        if context.method_name != "__call__" or type(module).__module__ == nn.transforms.__name__:
            return next_call(*args, **kwargs)
        path = ".".join(module.path)
        seen[path] = kind = _original(module)
        chosen = [choice for choice in choices if choice.matched(path, kind)]
        if not chosen or id(module) in running or module.is_initializing():
            return next_call(*args, **kwargs)
        policy = chosen[-1].policy
        traced, together = _traced(args, kwargs, lambda x: isinstance(x, nn.Module))

        def run(module: Callable, traced: list[Traced]) -> PyTree:
            args, kwargs = together(named_inputs(traced) if policy is OFFLOAD else traced)
            running.add(id(module))  # this time it is the call itself
            try:
                return module(*args, **kwargs)
            finally:
                running.discard(id(module))

        return nn.remat(run, policy=policy)(module, traced)

    def watched(method: Callable) -> Callable:
        @nn.nowrap
        @functools.wraps(method)
        def call(self: nn.Module, *args: object, **kwargs: object) -> PyTree:
            if _intercepted.get() or self.scope is None:
                return method(self, *args, **kwargs)
            token = _intercepted.set(True)
            try:
                with nn.intercept_methods(intercept):
                    result = method(self, *args, **kwargs)
            finally:
                _intercepted.reset(token)
            if "" in seen:  # the whole model has been called, and not one part of it by a method of its own
                for choice in choices:
                    choice.check(seen)
            return result

        return call

    methods = {name: watched(method) for name, method in _methods(cls).items()}
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.init}
    return _subclass(cls, **methods, _choices=choices)(**fields | {"parent": None})


def _methods(cls: type[nn.Module]) -> dict[str, Callable]:
    """What a user's Linen class and its bases define themselves, by name; the last definition counts."""
    own = [vars(base) for base in reversed(cls.__mro__) if issubclass(base, nn.Module) and base is not nn.Module]
    return {
        name: method
        for namespace in own
        for name, method in namespace.items()
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("__"))
    }
