"""Plans for GPUs that are not there: what each setting would hold and send, estimated or compiled for them."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.explain.layouts import Layouts, LeafLayout, parameter_layouts
    from jzero.plan.compiled.collectives import KINDS, Collective
    from jzero.plan.compiled.compile import compile_step
    from jzero.plan.compiled.program import Memory, Program, read_program
    from jzero.plan.compiled.timeline import Loop, Span, Timeline
    from jzero.plan.compiled.topology import compile_only, gpu_mesh
    from jzero.plan.compiled.traffic import LoopTraffic
    from jzero.plan.estimate.deepspeed import DeepSpeedEstimate, deepspeed_estimate
    from jzero.plan.estimate.step import ClosedForm, closed_form, estimate_step
    from jzero.plan.hardware.cluster import Cluster
    from jzero.plan.hardware.figures import GPUS, GpuFigures, gpu_figures
    from jzero.plan.hardware.links import LinkTraffic
    from jzero.plan.hardware.pace import StepTime
    from jzero.plan.memory_use import MemoryUse
    from jzero.plan.search.largest import Largest, largest_model, max_batch
    from jzero.plan.search.planner import Plan, plan
    from jzero.plan.search.recommendation import Recommendation
    from jzero.plan.search.row import Row
    from jzero.plan.search.setting import Setting
    from jzero.plan.search.workload import RunOptions
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.explain.layouts": ("Layouts", "LeafLayout", "parameter_layouts"),
            "jzero.plan.compiled.collectives": ("KINDS", "Collective"),
            "jzero.plan.compiled.compile": ("compile_step",),
            "jzero.plan.compiled.program": ("Memory", "Program", "read_program"),
            "jzero.plan.compiled.timeline": ("Loop", "Span", "Timeline"),
            "jzero.plan.compiled.topology": ("compile_only", "gpu_mesh"),
            "jzero.plan.compiled.traffic": ("LoopTraffic",),
            "jzero.plan.estimate.deepspeed": ("DeepSpeedEstimate", "deepspeed_estimate"),
            "jzero.plan.estimate.step": ("ClosedForm", "closed_form", "estimate_step"),
            "jzero.plan.hardware.cluster": ("Cluster",),
            "jzero.plan.hardware.figures": ("GPUS", "GpuFigures", "gpu_figures"),
            "jzero.plan.hardware.links": ("LinkTraffic",),
            "jzero.plan.hardware.pace": ("StepTime",),
            "jzero.plan.memory_use": ("MemoryUse",),
            "jzero.plan.search.largest": ("Largest", "largest_model", "max_batch"),
            "jzero.plan.search.planner": ("Plan", "plan"),
            "jzero.plan.search.recommendation": ("Recommendation",),
            "jzero.plan.search.row": ("Row",),
            "jzero.plan.search.setting": ("Setting",),
            "jzero.plan.search.workload": ("RunOptions",),
        },
    )

__all__ = [
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
    "LinkTraffic",
    "Loop",
    "LoopTraffic",
    "Memory",
    "MemoryUse",
    "Plan",
    "Program",
    "Recommendation",
    "Row",
    "RunOptions",
    "Setting",
    "Span",
    "StepTime",
    "Timeline",
    "closed_form",
    "compile_only",
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
