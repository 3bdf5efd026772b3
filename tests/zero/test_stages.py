"""The table of stages says what the ZeRO paper says, and is the only place that knows."""

import re
from pathlib import Path

import pytest

import jzero
from jzero.errors import ConfigError
from jzero.zero.stages import STAGES, Gather, Reduce, stage_plan


def test_each_stage_shards_one_thing_more():
    assert [stage_plan(i).stage for i in range(4)] == [0, 1, 2, 3]
    assert [p.shards_state for p in STAGES] == [False, True, True, True]
    assert [p.scatters_at_use for p in STAGES] == [False, False, True, True]
    assert [p.gather for p in STAGES] == [Gather.NEVER, Gather.ONCE_PER_STEP, Gather.ONCE_PER_STEP, Gather.AT_USE]
    assert [p.persists_small_leaves for p in STAGES] == [False, False, False, True]


def test_only_stage_0_sums_gradients_whole():
    assert [p.reduce is Reduce.SUM_ONCE_PER_STEP for p in STAGES] == [True, False, False, False]


@pytest.mark.parametrize("stage", [4, -1, None])
def test_other_stages_do_not_exist(stage):
    with pytest.raises(ConfigError, match=rf"stage is {stage}, but ZeRO has the stages 0, 1, 2 and 3\."):
        stage_plan(stage)


def test_a_configuration_with_stage_4_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"zero_optimization\.stage.* 4"):
        jzero.Config.load({"train_batch_size": 8, "zero_optimization": {"stage": 4}})


def test_no_other_module_of_the_core_compares_a_stage_with_a_number():
    core = Path(jzero.__file__).parent
    rooms = ("zero", "gather", "sharding", "offload", "jaxpr", "optim", "flax", "explain", "train")
    for path in [*core.glob("*.py"), *(path for room in rooms for path in (core / room).rglob("*.py"))]:
        if path.name != "stages.py":
            assert not re.search(r"\bstage\s*(==|!=|<|>|<=|>=|in|not in)\s*[\d([{]", path.read_text()), path
