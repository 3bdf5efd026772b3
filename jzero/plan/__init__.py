"""Programs for GPUs that are not there: compile for them, then read what they would hold and send."""

from jzero.plan.collectives import KINDS, Collective
from jzero.plan.compile import compile_step
from jzero.plan.figures import GpuFigures, gpu_figures
from jzero.plan.program import Memory, Program, read_program
from jzero.plan.topology import COMPILE_ONLY_OPTIONS, GPUS, gpu_mesh
from jzero.plan.traffic import LoopTraffic

__all__ = [
    "COMPILE_ONLY_OPTIONS",
    "GPUS",
    "KINDS",
    "Collective",
    "GpuFigures",
    "LoopTraffic",
    "Memory",
    "Program",
    "compile_step",
    "gpu_figures",
    "gpu_mesh",
    "read_program",
]
