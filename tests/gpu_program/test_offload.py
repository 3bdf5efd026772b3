"""State in host memory, read from the GPT's training step compiled for H100s that are not there."""

import math
import re

import pytest

from tests.gpu_program.test_stages import MIB, compiled, n_params

OPTIMIZER = {"offload_optimizer": {"device": "cpu"}, "sub_group_size": 2**20}
BOTH = {**OPTIMIZER, "offload_param": {"device": "cpu"}}
PIECE = 2**20 * 4
SMALL = 1 * MIB
"""What stays on the device: norms, biases, and the moments of those."""


def lasting(program):
    return program.memory.argument, program.memory.host_argument


@pytest.fixture(scope="module")
def offloaded():
    return compiled(3, 8, zero=BOTH, n_micro=1)


@pytest.fixture(scope="module")
def plain():
    return compiled(3, 8, n_micro=1)


def test_all_but_small_leaves_leaves_the_device(offloaded):
    on_device, on_host = lasting(offloaded)
    assert on_device < SMALL
    assert 0.99 < on_host / (12 * n_params() / 8) <= 1.001
    assert offloaded.memory.host_output == offloaded.memory.host_alias == on_host  # updated in place


def test_the_host_holds_the_gradients_and_nothing_twice(offloaded):
    assert offloaded.memory.host_temp <= 4 * n_params() / 8


def test_working_memory_grows_by_pieces_only(offloaded, plain):
    # In flight: one piece of the parameter, its moments and its gradient going in while another comes out.
    assert offloaded.memory.temp <= plain.memory.temp + 2 * 4 * PIECE


def test_beside_an_optimizer_in_files_parameters_and_gradients_are_all_that_the_host_has():
    optimizer = {"device": "nvme", "nvme_path": "not looked at"}
    program = compiled(3, 8, zero={"offload_optimizer": optimizer, "offload_param": {"device": "cpu"}}, n_micro=1)
    on_device, on_host = lasting(program)
    assert on_device < SMALL
    assert 0.99 < on_host / (2 * n_params() / 8) <= 1.001  # bf16
    assert 0.99 < program.memory.host_output / (4 * n_params() / 8) <= 1.001  # fp32
    assert program.memory.host_temp < SMALL
    assert not synchronous_copies(program.hlo_text)


def test_every_large_copy_is_asynchronous(offloaded):
    assert not synchronous_copies(offloaded.hlo_text)
    assert len(re.findall(r" copy-start\(| fusion-start\(", offloaded.hlo_text)) > 20


def test_with_the_optimizer_alone_parameters_come_once_a_step(plain):
    program = compiled(3, 8, zero=OPTIMIZER, n_micro=1)
    on_device, on_host = lasting(program)
    assert on_device < SMALL
    assert 0.99 < on_host / (12 * n_params() / 8) <= 1.001
    assert not synchronous_copies(program.hlo_text)
    assert program.memory.host_temp < SMALL
    half = 2 * n_params() / 8
    assert program.memory.temp <= plain.memory.temp + half + 2 * 4 * PIECE


def synchronous_copies(hlo_text):
    """Instructions that move more than 1 MiB from or to host memory and are not the inside of an asynchronous one."""
    found, computation = [], ""
    for line in hlo_text.splitlines():
        if opening := re.match(r"(?:ENTRY )?%(\S+) ", line):
            computation = opening.group(1)
        moved = re.match(r"\s+(?:ROOT )?%\S+ = \w+\[([\d,]*)\]\S*S\(5\)\S* (copy|fusion|pad|dynamic-\S+slice)\(", line)
        if moved and not computation.startswith("wrapped"):
            sizes = [int(n) for n in moved.group(1).split(",") if n]
            if 4 * math.prod(sizes) > MIB:
                found.append(line.strip())
    return found
