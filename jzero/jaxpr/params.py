"""What the parameters of an equation say; nothing else knows how JAX names them."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import jax
from jax.extend import core as jex_core
from jax.typing import DTypeLike

from jzero.jaxpr.primitives import FLASH_ATTENTION, SCAN, name_of
from jzero.jaxpr.program import Equation, Program

_PROGRAMS = (jex_core.Jaxpr, jex_core.ClosedJaxpr)


def inner_jaxprs(eqn: Equation) -> list[Program]:
    """The jaxprs among the parameters of an equation."""
    values = [v for p in eqn.params.values() for v in (p if isinstance(p, (tuple, list)) else [p])]
    return [v for v in values if is_program(v)]


def called_program(eqn: Equation) -> Program | Any:  # Any for the None, which few callers can meet
    """What a call, a region, a loop or a `shard_map` runs; None if it is nothing of the kind."""
    return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))


def rounds(eqn: Equation) -> int:
    """How often it runs what is inside of it, as far as that is known before it runs."""
    return eqn.params["length"] if name_of(eqn) == SCAN else 1


def is_program(value: object) -> TypeGuard[Program]:
    """Whether a parameter is a jaxpr."""
    return isinstance(value, _PROGRAMS)


class Scan(NamedTuple):
    """A `scan`: its body, how many iterations there are, in which direction, and how many are compiled together."""

    program: Program
    length: int
    reverse: bool
    unroll: int


def scan_of(eqn: Equation) -> Scan:
    """The parameters of a `scan`."""
    return Scan(*(eqn.params[name] for name in ("jaxpr", "length", "reverse", "unroll")))


def scan_arity(eqn: Equation) -> tuple[int, int]:
    """The number of constants and of carried values among the operands of a `scan` equation."""
    if "ft_in" in eqn.params:
        consts, carry, _ = eqn.params["ft_in"].unpack()
        return len(consts), len(carry)
    return eqn.params["num_consts"], eqn.params["num_carry"]


class While(NamedTuple):
    """A `while`: its two programs, and how many of the operands are constants of each."""

    body: Program
    condition: Program
    n_body: int
    n_condition: int


def while_of(eqn: Equation) -> While:
    """The parameters of a `while`; its operands are the condition's constants, the body's, and what it carries."""
    return While(*(eqn.params[name] for name in ("body_jaxpr", "cond_jaxpr", "body_nconsts", "cond_nconsts")))


def branches_of(eqn: Equation) -> Sequence[Program]:
    """The programs of a `cond` or `switch`, whose first operand chooses."""
    return eqn.params["branches"]


class Remat(NamedTuple):
    """A `jax.checkpoint` region: what it keeps, and whether its recomputation is held apart by a barrier."""

    policy: Callable | None
    prevent_cse: bool | tuple[bool, ...]


def remat_of(eqn: Equation) -> Remat:
    """The parameters of a `jax.checkpoint` region."""
    return Remat(eqn.params["policy"], eqn.params["prevent_cse"])


def recomputes_behind_barrier(eqn: Equation) -> bool:
    """Whether it is a differentiated region in front of which the compiled program has a barrier."""
    return bool(eqn.params.get("differentiated") and eqn.params["prevent_cse"])


class Dot(NamedTuple):
    """A `dot_general`: dimensions of both operands that are summed over, and that stand for a batch; its precision."""

    contract_left: Sequence[int]
    contract_right: Sequence[int]
    batch_left: Sequence[int]
    batch_right: Sequence[int]
    precision: jax.lax.PrecisionLike
    preferred_element_type: DTypeLike | None


def dot_of(eqn: Equation) -> Dot:
    """The parameters of a `dot_general`."""
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    precision, preferred = eqn.params["precision"], eqn.params["preferred_element_type"]
    return Dot(left, right, batch_left, batch_right, precision, preferred)


def ragged_contraction(eqn: Equation) -> Sequence[int]:
    """The dimensions of a `ragged_dot`'s left operand that are summed over: of each group of rows by a matrix."""
    return eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers[0][0]


class Convolution(NamedTuple):
    """A convolution: which dimension of the kernel counts its outputs, and how many places an input is spread over."""

    out_features_dim: int
    dilation: int


def convolution_of(eqn: Equation) -> Convolution:
    """The parameters of a `conv_general_dilated`."""
    return Convolution(eqn.params["dimension_numbers"].rhs_spec[0], math.prod(eqn.params["lhs_dilation"]))


class FlashAttention(NamedTuple):
    """cuDNN's attention: how many products it makes, which dimension of the keys counts them, and what is left out."""

    n_products: int
    keys_dim: int
    is_causal: bool
    window: int | None


def flash_attention_of(eqn: Equation) -> FlashAttention:
    """The parameters of cuDNN's attention; backward it makes the scores again."""
    n_products = 2 if name_of(eqn) == FLASH_ATTENTION else 5
    keys_dim = 2 if eqn.params["layout"] else 1  # BNTH, else BTNH
    return FlashAttention(
        n_products, keys_dim, "CAUSAL" in eqn.params["mask_type"].name, eqn.params["sliding_window_length"]
    )


class Lookup(NamedTuple):
    """A `gather`: which dimensions mean what, and what is known of its indices."""

    dimension_numbers: jax.lax.GatherDimensionNumbers
    indices_are_sorted: bool
    unique_indices: bool
    mode: jax.lax.GatherScatterMode


def lookup_of(eqn: Equation) -> Lookup:
    """The parameters of a `gather`, which indexes an array."""
    return Lookup(*(eqn.params[name] for name in Lookup._fields))


def new_dtype(eqn: Equation) -> DTypeLike:
    """The dtype that a `convert_element_type` casts to."""
    return eqn.params["new_dtype"]


def permutation(eqn: Equation) -> Sequence[int]:
    """The old dimension in the place of each new one of a `transpose`."""
    return eqn.params["permutation"]


def mesh_axes(eqn: Equation) -> tuple[str, ...]:
    """The axes of the mesh along which a collective goes."""
    named = cast(tuple[str, ...] | str, eqn.params.get("axes", eqn.params.get("axis_name")))
    return named if isinstance(named, tuple) else (named,)


def params_text(eqn: Equation) -> str:
    """All parameters as a text, the same for equations that have the same."""
    return repr(sorted((name, str(value)) for name, value in eqn.params.items()))


def params_key(eqn: Equation, key_of: Callable[[object], Hashable]) -> Hashable:
    """All parameters, each by its name and as a function makes a key of it."""
    return tuple((name, key_of(value)) for name, value in sorted(eqn.params.items()))
