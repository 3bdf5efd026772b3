"""The one door to JAX's unstable surface: jaxprs, primitives by name, and what differs between JAX versions.

Nothing outside of this folder imports JAX's internals, names a primitive's parameters or iterates over equations.

Layout:
    versions.py: every difference between the supported JAX versions that is no parameter of a primitive.
    program.py: traces functions, evaluates jaxprs, applies single equations.
    primitives.py: the one table of primitives by name, and questions about them.
    params.py: what the parameters of an equation say.
    axes.py: axis names of a function's own, as `jax.pmap` binds them, in the place of a mesh's.
    devices.py: which devices a program is traced for, where JAX would ask the machine at hand.
    coordination.py: what processes say to each other before any program runs.
    walk.py: goes over equations, with those inside of them.
    facts.py: follows what is known of inputs to the outputs.
    varying.py: what differs between devices.
    weights.py: what a program's parameters act on, and what only its loss compares with.
    arithmetic.py: how many operations products take.
    shares.py: marks products of which a mask hides some.
    compilations.py: what was compiled, how long it took, and for which settings.
    dead_code.py: reduces jaxprs to some of their outputs.
    keys.py: tells equations that compute the same.
    elementwise.py: runs a program on a piece of its operands.
    policies.py: rematerialisation policies.
"""

from jzero.jaxpr.dead_code import parts, restrict
from jzero.jaxpr.keys import equation_key
from jzero.jaxpr.params import called_program, inner_jaxprs, scan_arity
from jzero.jaxpr.primitives import name_of
from jzero.jaxpr.program import Equation, Program, Subprogram, Variable, bind, evaluate, subprogram, trace
from jzero.jaxpr.versions import JAX_VERSION, overlap_options
from jzero.jaxpr.walk import equations, every_equation, interpret, place_of, run_replacing

__all__ = [
    "JAX_VERSION",
    "Equation",
    "Program",
    "Subprogram",
    "Variable",
    "bind",
    "called_program",
    "equation_key",
    "equations",
    "evaluate",
    "every_equation",
    "inner_jaxprs",
    "interpret",
    "name_of",
    "overlap_options",
    "parts",
    "place_of",
    "restrict",
    "run_replacing",
    "scan_arity",
    "subprogram",
    "trace",
]
