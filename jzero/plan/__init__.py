"""Plans for GPUs that are not there: what each setting would hold and send, estimated or compiled for them."""

from jzero.plan.closed_form import ClosedForm, closed_form, estimate_step
from jzero.plan.cluster import Cluster, Wire
from jzero.plan.collectives import KINDS, Collective
from jzero.plan.compile import compile_step
from jzero.plan.deepspeed import DeepSpeedEstimate, deepspeed_estimate
from jzero.plan.figures import GPUS, GpuFigures, gpu_figures
from jzero.plan.largest import Largest, largest_model, max_batch
from jzero.plan.layouts import Layouts, LeafLayout, parameter_layouts
from jzero.plan.memory_use import MemoryUse
from jzero.plan.planner import Plan, plan
from jzero.plan.program import Memory, Program, read_program
from jzero.plan.recommend import Recommendation
from jzero.plan.row import Row
from jzero.plan.setting import Setting
from jzero.plan.step_time import StepTime
from jzero.plan.timeline import Loop, Span, Timeline
from jzero.plan.topology import COMPILE_ONLY_OPTIONS, gpu_mesh
from jzero.plan.traffic import LoopTraffic

__all__ = [
    "COMPILE_ONLY_OPTIONS",
    "GPUS",
    "KINDS",
    "ClosedForm",
    "Cluster",
    "Collective",
    "DeepSpeedEstimate",
    "GpuFigures",
    "Largest",
    "Layouts",
    "LeafLayout",
    "Loop",
    "LoopTraffic",
    "Memory",
    "MemoryUse",
    "Plan",
    "Program",
    "Recommendation",
    "Row",
    "Setting",
    "Span",
    "StepTime",
    "Timeline",
    "Wire",
    "closed_form",
    "compile_step",
    "deepspeed_estimate",
    "estimate_step",
    "gpu_figures",
    "gpu_mesh",
    "largest_model",
    "max_batch",
    "parameter_layouts",
    "plan",
    "read_program",
]
