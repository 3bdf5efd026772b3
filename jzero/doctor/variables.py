"""Environment variables that make training fail, hang or crawl, and what each does."""

from collections.abc import Callable
from dataclasses import dataclass

from jzero.doctor.finding import Level


@dataclass(frozen=True)
class Variable:
    """One to look for.

    Attributes:
        name: of the variable.
        matters: whether a value of it does.
        level: how much.
        advice: what it does, and what to do.
        on_gpu: whether that is so only where there are GPUs.
    """

    name: str
    matters: Callable[[str], bool]
    level: Level
    advice: str
    on_gpu: bool = True


_is_on = lambda value: value.strip().lower() not in ("", "0", "false", "off", "no")
_is_off = lambda value: not _is_on(value)
_always = lambda value: bool(value.strip())

VARIABLES = (
    Variable(
        "NCCL_P2P_DISABLE",
        _is_on,
        "wrong",
        "GPUs of one node then talk through host memory and not over NVLink; unset it.",
    ),
    Variable(
        "NCCL_SHM_DISABLE",
        _is_on,
        "wrong",
        "GPUs without a direct link then talk through the network stack; unset it, and enlarge /dev/shm instead.",
    ),
    Variable(
        "NCCL_NVLS_ENABLE",
        _is_off,
        "note",
        "NVSwitches then do not add up all-reduces; unset it unless a driver fails with them.",
    ),
    Variable(
        "NCCL_NET_GDR_LEVEL",
        _always,
        "note",
        "It decides by hand when network cards read GPU memory directly; NCCL chooses well by itself.",
    ),
    Variable(
        "NCCL_ALGO",
        _always,
        "note",
        "It fixes NCCL's algorithm for all sizes of messages; unset it unless it was measured to help.",
    ),
    Variable(
        "NCCL_PROTO",
        _always,
        "note",
        "It fixes NCCL's protocol for all sizes of messages; unset it unless it was measured to help.",
    ),
    Variable(
        "NCCL_DEBUG",
        lambda value: value.strip().upper() in ("INFO", "TRACE"),
        "note",
        "NCCL prints much; WARN prints only what is wrong.",
    ),
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        _is_on,
        "wrong",
        "The host then waits for every kernel, so that nothing overlaps; unset it.",
    ),
    Variable(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        lambda value: value.strip() == "1",
        "note",
        "Kernels and copies of all streams then queue in one line. It is in use up to Hopper; NVIDIA advises against "
        "it on Blackwell: unset it there.",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        _is_off,
        "note",
        "fp32 products then run without tensor cores, about eight times slower.",
    ),
    Variable(
        "XLA_PYTHON_CLIENT_ALLOCATOR",
        lambda value: value.strip().lower() == "platform",
        "wrong",
        "Every array is then allocated by CUDA itself, which waits for the GPU each time; unset it.",
    ),
    Variable(
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        _is_off,
        "note",
        "Memory is then taken bit by bit and may end in pieces too small for a step that would fit.",
    ),
    Variable("JAX_DISABLE_JIT", _is_on, "wrong", "jzero's step is a compiled program; unset it.", on_gpu=False),
    Variable(
        "JAX_DEBUG_NANS",
        _is_on,
        "note",
        "Every program then runs again, operation by operation, when it yields a NaN, and a step that fp16 would skip "
        "ends the run. jzero names the parameter and micro-batch by itself.",
        on_gpu=False,
    ),
    Variable(
        "JAX_ENABLE_X64",
        _is_on,
        "note",
        "Arrays made without a dtype then have 64 bits, which doubles what they take.",
        on_gpu=False,
    ),
)
"""What is looked for, beside what needs to know more of the machine."""
