"""The settings of JAX, XLA and NCCL that matter on GPUs: which jzero makes itself, and which only the user can.

What a program is compiled with, jzero sets for that program alone. What must be there before JAX starts, or belongs to
a site's network, stands in the environment: `jzero doctor --settings` shows the table with the present values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

By = Literal["jzero", "you", "leave"]

_XLA = "https://github.com/openxla/xla/blob/main/xla/debug_options_flags.cc"
_TIPS = "https://docs.nvidia.com/jax-toolbox/performance-profiling/gpu-performance"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_MEMORY = "https://docs.jax.dev/en/latest/gpu_memory_allocation.html"
_CACHE = "https://docs.jax.dev/en/latest/persistent_compilation_cache.html"


@dataclass(frozen=True)
class Setting:
    """One of them.

    Attributes:
        name: an environment variable, or an option of XLA, which would stand in `XLA_FLAGS`.
        by: "jzero" sets it for each program; "you" export it before the start; "leave" it alone unless measured.
        value: what is set, or what to export.
        why: when it matters, and what it does.
        source: where that is documented.
    """

    name: str
    by: By
    value: str
    why: str
    source: str

    def present(self, environment: Mapping[str, str]) -> str:
        """Its value in an environment; empty where it has none.

        Example:
            >>> SETTINGS[0].name, SETTINGS[0].present({"XLA_FLAGS": "--xla_gpu_all_gather_combine_threshold_bytes=1"})
            ('xla_gpu_all_gather_combine_threshold_bytes', '1')
        """
        if not self.name.startswith("xla_"):
            return environment.get(self.name, "")
        flags = [flag.lstrip("-").partition("=") for flag in environment.get("XLA_FLAGS", "").split()]
        return next((value or "true" for name, _, value in reversed(flags) if name == self.name), "")


SETTINGS = (
    Setting(
        "xla_gpu_all_gather_combine_threshold_bytes",
        "jzero",
        "from `allgather_bucket_size`; one layer at stage 3",
        "smaller gathers are merged up to this size",
        _XLA,
    ),
    Setting(
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        "jzero",
        "from `reduce_bucket_size`, of what is left after it",
        "the same for scatters of gradients; XLA's own value keeps a whole layer's gradients waiting in fp32",
        _XLA,
    ),
    Setting(
        "xla_gpu_all_reduce_combine_threshold_bytes",
        "jzero",
        "from `reduce_bucket_size`",
        "the same for sums of gradients",
        _XLA,
    ),
    Setting(
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        "jzero",
        "2 with `overlap_comm`, else 1",
        "a gather and a scatter may be under way at once",
        _XLA,
    ),
    Setting(
        "xla_gpu_enable_pipelined_all_gather",
        "jzero",
        "off, and that of reduce-scatters",
        "jzero pipelines loops over layers itself; `xla_gpu_pipeline_all_gather` from jax 0.12 on",
        _XLA,
    ),
    Setting(
        "xla_gpu_first_collective_call_terminate_timeout_seconds",
        "jzero",
        "300",
        "how long the GPUs of one process wait for each other at first; 40 s are passed where one autotunes longer",
        _XLA,
    ),
    Setting(
        "xla_gpu_executable_terminate_timeout_seconds",
        "jzero",
        "300",
        "the same for a program's start, 30 s otherwise",
        _XLA,
    ),
    Setting(
        "JAX_COMPILATION_CACHE_DIR",
        "jzero",
        "`compile_cache` in `output_dir` (`jzero.compile_cache`); yours holds",
        "a restart then loads what an earlier start compiled; give all processes of a run one shared folder",
        _CACHE,
    ),
    Setting(
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "you",
        "0.92",
        "the share of a GPU's memory that JAX takes, 0.75 otherwise; NCCL and CUDA graphs live in the rest, so lower "
        "it again if NCCL runs out of memory",
        _MEMORY,
    ),
    Setting(
        "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB",
        "you",
        "what offloaded state takes, per process",
        "JAX pins at most 64 GB of host memory otherwise",
        _XLA,
    ),
    Setting(
        "xla_gpu_nccl_terminate_on_error",
        "you",
        "true",
        "with several processes: an error of NCCL then ends the process at once, and not after a wait for the others",
        _XLA,
    ),
    Setting(
        "xla_gpu_nccl_termination_timeout_seconds",
        "you",
        "1800",
        "with several processes: ends a collective that is stuck; without it a run waits for ever",
        _XLA,
    ),
    Setting("NCCL_DEBUG", "you", "WARN", "NCCL says what is wrong before it gives up; INFO only while looking", _NCCL),
    Setting(
        "NCCL_SOCKET_IFNAME",
        "you",
        "what your site says",
        "the network interface, where a node has several and NCCL takes a wrong one",
        _NCCL,
    ),
    Setting(
        "NCCL_IB_HCA",
        "you",
        "what your site says",
        "the InfiniBand or RoCE ports; with RoCE NCCL_IB_GID_INDEX too",
        _NCCL,
    ),
    Setting(
        "NCCL_NVLS_ENABLE",
        "leave",
        "unset",
        "NVSwitches add up sums where they can; 1, with `--xla_gpu_enable_nccl_user_buffers=true` in XLA_FLAGS, lets "
        "them work without copies, for more memory",
        _NCCL,
    ),
    Setting(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "leave",
        "unset",
        "1 makes all streams share one queue: in use up to Hopper, slower on Blackwell",
        _TIPS,
    ),
    Setting(
        "xla_gpu_enable_latency_hiding_scheduler",
        "leave",
        "unset",
        "on in the supported versions; what the option does differs between them",
        _TIPS,
    ),
    Setting(
        "JAX_ENABLE_PGLE",
        "leave",
        "unset",
        "profiles steps and schedules anew by them; jzero's order is fixed in the program, which leaves it little",
        _TIPS,
    ),
)
"""In the order of the table in `docs/gpu.md`."""


def markdown() -> str:
    """The table of `docs/gpu.md`."""
    lines = ["| setting | by | value | why |", "|---|---|---|---|"]
    lines += [f"| [`{s.name}`]({s.source}) | {s.by} | {s.value} | {s.why} |" for s in SETTINGS]
    return "\n".join(lines)
