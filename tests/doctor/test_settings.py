"""The table of settings: the page has it, jzero sets what it says, and the present values are found."""

from pathlib import Path

import pytest

from jzero.config import Config
from jzero.doctor.settings import SETTINGS, markdown
from jzero.jaxpr import JAX_VERSION
from jzero.plan import gpu_mesh
from jzero.plan.hardware.cluster import USABLE
from jzero.zero.precision import precision_of
from jzero.zero.xla_options import PATIENCE, compiler_options

BY_NAME = {setting.name: setting for setting in SETTINGS}


def test_the_page_has_the_table():
    assert markdown() in (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_jzero_sets_what_the_table_says_and_all_of_it_is_there():
    config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": 3}}).resolve(world=8)
    options = set(compiler_options(gpu_mesh(n_gpus=8), config, precision_of(config), 1000))
    listed = {name for name, setting in BY_NAME.items() if setting.by == "jzero" and name.startswith("xla_")}
    pipelining = {"xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_pipelined_reduce_scatter"}
    if JAX_VERSION >= (0, 12):
        newer = {"xla_gpu_pipeline_all_gather", "xla_gpu_pipeline_reduce_scatter"}
        assert newer <= options
        options = options - newer | pipelining
    assert options == listed | pipelining
    assert {BY_NAME[name].value for name in PATIENCE} == {"300"} == set(map(str, PATIENCE.values()))
    assert BY_NAME["XLA_PYTHON_CLIENT_MEM_FRACTION"].value == str(USABLE)


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("", ""),
        ("--xla_gpu_nccl_terminate_on_error", "true"),
        ("--a=1 --xla_gpu_nccl_terminate_on_error=false", "false"),
        ("--xla_gpu_nccl_terminate_on_error=true --xla_gpu_nccl_terminate_on_error=false", "false"),
        ("--xla_gpu_nccl_terminate_on_errors=true", ""),
    ],
)
def test_an_option_of_xla_is_read_as_xla_reads_it(flags, value):
    assert BY_NAME["xla_gpu_nccl_terminate_on_error"].present({"XLA_FLAGS": flags}) == value


def test_a_variable_is_its_own_value():
    assert BY_NAME["NCCL_DEBUG"].present({"NCCL_DEBUG": "INFO"}) == "INFO"
    assert BY_NAME["NCCL_DEBUG"].present({}) == ""
