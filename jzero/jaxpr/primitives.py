"""The one table of JAX's primitives by name, and questions about the primitive of an equation.

A name that JAX changes is changed here; `tests/jaxpr/test_primitives.py` holds the table to the JAX that is installed.
"""

from jzero.jaxpr.program import Equation

SCAN, SHARD_MAP, REMAT, JIT, CUSTOM_JVP = "scan", "shard_map", "remat2", "jit", "custom_jvp_call"
CONVERT, STOP_GRADIENT, TRANSPOSE, BROADCAST = "convert_element_type", "stop_gradient", "transpose", "broadcast_in_dim"
DOT, CONVOLUTION, GATHER, ALL_GATHER, REDUCE_SCATTER = (
    "dot_general",
    "conv_general_dilated",
    "gather",
    "all_gather",
    "reduce_scatter",
)
CALLBACKS = frozenset({"pure_callback", "io_callback"})
CUSTOM_PARTITIONING = "custom_partitioning"
LAPACK = frozenset({
    "cholesky", "eig", "eigh", "hessenberg", "householder_product", "lu", "qr", "schur", "svd", "tridiagonal",
    "tridiagonal_solve",
})  # fmt: skip
"""What linear-algebra libraries compute, and none of them in 16 bits."""

RAGGED_DOT = "ragged_dot_general"
FLASH_ATTENTION, FLASH_ATTENTION_BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"
UNCOUNTED = {
    **dict.fromkeys(LAPACK, "linear algebra"),
    **dict.fromkeys(CALLBACKS, "a callback to the host"),
    "fft": "a Fourier transform",
    "pallas_call": "a kernel of its own",
    CUSTOM_PARTITIONING: "an operation with a partitioning of its own",
    "ffi_call": "code of a library",
    SHARD_MAP: "a program over a mesh of its own",
}
"""What computes, and how much is not known."""

BARRIER, UPDATE_SLICE = "optimization_barrier", "dynamic_update_slice"

OF_SOME_VERSIONS = frozenset({"closed_call", "call", "one_minus_square"})
"""Names that not every supported JAX has: 0.12 has only `eval_jaxpr` in the place of the two calls."""

CALLS = frozenset({JIT, "closed_call", "call", "eval_jaxpr"})
"""Calls that only give a name to a piece of code."""

INLINED = CALLS | {CUSTOM_JVP, "custom_vjp_call", REMAT}
"""What a compiler sees the inside of, once it is differentiated."""

WHILE, COND, AXIS_INDEX = "while", "cond", "axis_index"
LOOPS = frozenset({SCAN, WHILE, COND})

COPIES = frozenset({"copy", "name"})
"""The same values under another name."""

REPLAYABLE = COPIES | {"reshape", TRANSPOSE, "squeeze", BROADCAST, "slice", "rev"}
"""Primitives of one operand that only rearrange it."""

RENAMES = COPIES | {
    "reshape", "squeeze", TRANSPOSE, STOP_GRADIENT, BARRIER, "reshard", "sharding_constraint", "pvary",
}  # fmt: skip
"""Operations that give the same bytes another shape or name."""

SUMS = frozenset({"psum", "psum_invariant"})
SINKS = SUMS | {REDUCE_SCATTER}
"""The collectives that sum gradients."""

COLLECTIVES = {
    ALL_GATHER: "all-gather",
    REDUCE_SCATTER: "reduce-scatter",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
"""JAX's collectives, and what they are called in a compiled program."""

SLICES = frozenset({"slice", "dynamic_slice"})
SCATTERS = frozenset({"scatter", "scatter-add"})
OF_ONE_LITERAL = frozenset({BROADCAST, CONVERT, "reshape"})
"""What makes one number of one number."""

NEVER_MERGED = LOOPS | {BARRIER, "random_bits"}
"""What a compiler runs as often as it stands there, even twice on the same operands."""

REDUCTIONS = frozenset({
    "reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin",
})  # fmt: skip

CHEAP = frozenset({
    "max", "min", "select_n", "add", "add_any", "sub", "neg", "mul", "gt", "lt", "ge", "le", "eq", "ne", "and",
    "or", "not", "clamp", CONVERT, BROADCAST, "slice", "pad",
})  # fmt: skip
"""Elementwise operations that a product fuses into reading its operand, so that the result is no array at all."""

FUSED = CHEAP | {
    "abs", "sign", "div", "rem", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "pow",
    "integer_pow", "square", "one_minus_square", "tanh", "logistic", "erf", "erfc", "erf_inv", "sin", "cos",
    "tan", "atan2", "floor", "ceil", "round", "is_finite", "iota", "rev", "concatenate", "split", "stack",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "xor", "population_count", "nextafter", "real",
    "imag", "complex", "conj", "random_wrap", "random_unwrap", "random_fold_in", "random_split", "axis_index",
    "dynamic_slice", "bitcast_convert_type",
}  # fmt: skip
"""Operations that XLA fuses into whatever reads their result."""

ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "complex", "conj", CONVERT, "copy", "cos", "div", "eq",
    "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "real", "reduce_precision",
    "rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", STOP_GRADIENT, "sub", "tanh", "xor",
})  # fmt: skip
"""Operations of which every element of the result depends on the same element of each operand alone."""


def name_of(eqn: Equation) -> str:
    """The name of an equation's primitive."""
    return eqn.primitive.name


def is_scan(eqn: Equation) -> bool:
    """Whether it is a loop of known length."""
    return name_of(eqn) == SCAN


def is_remat(eqn: Equation) -> bool:
    """Whether it is a `jax.checkpoint` region."""
    return name_of(eqn) == REMAT


def is_call(eqn: Equation) -> bool:
    """Whether it only gives a name to a piece of code."""
    return name_of(eqn) in CALLS


def is_cast(eqn: Equation) -> bool:
    """Whether it changes the dtype."""
    return name_of(eqn) == CONVERT


def rearranges(eqn: Equation) -> bool:
    """Whether it has one operand and only rearranges it."""
    return name_of(eqn) in REPLAYABLE and len(eqn.invars) == 1


def stops_gradient(eqn: Equation) -> bool:
    """Whether it is `jax.lax.stop_gradient`."""
    return name_of(eqn) == STOP_GRADIENT
