"""Apex's and autocast's sections: read as `fp16` and `bf16`, or a sentence."""

import pytest

from jzero.config import Config
from jzero.errors import ConfigError


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_apex_is_fp16_with_its_own_loss_scaler(level):
    config = Config.load({"train_batch_size": 8, "amp": {"enabled": True, "opt_level": level}})
    assert config.notes == [
        "`amp.enabled` = true is read as `fp16.enabled` = true",
        f'`amp.opt_level` = "{level}" is read as `fp16.enabled` = true',
    ]
    for found in (config, config.resolve(world=8)):
        fp16 = found.fp16
        assert (found.precision, fp16.loss_scale, fp16.initial_scale_power) == ("fp16", 0, 16)
        assert (fp16.loss_scale_window, fp16.hysteresis, found.jzero.max_loss_scale) == (2000, 1, 2**24)
        assert found.origins["fp16.enabled"] == "given as amp.opt_level"


def test_apex_with_scales_of_its_own():
    amp = {"enabled": True, "loss_scale": 128.0, "min_loss_scale": 32.0, "max_loss_scale": 4096.0}
    config = Config.load({"amp": amp})
    assert (config.fp16.loss_scale, config.fp16.min_loss_scale, config.jzero.max_loss_scale) == (128, 32, 4096)
    assert Config.load({"amp": {"enabled": True, "loss_scale": "dynamic"}}).fp16.loss_scale == 0


def test_apex_at_its_level_of_fp32_or_switched_off_is_fp32():
    for amp in ({"enabled": True, "opt_level": "O0"}, {"enabled": "auto", "opt_level": "auto"}, {"enabled": False}):
        assert Config.load({"train_batch_size": 8, "amp": amp}).resolve(world=8).precision == "fp32"


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("BF16", "bf16"), ("float16", "fp16"), (None, "fp16")],
)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_autocast_is_16_bit_compute(dtype, precision, stage):
    autocast = {"enabled": True, "dtype": dtype, "lower_precision_safe_modules": ["torch.nn.Linear"]}
    config = Config.load({"torch_autocast": autocast, "zero_optimization": {"stage": stage}})
    assert config.precision == precision
    *read, unread = config.notes
    assert len(read) == 1 + (dtype is not None)
    assert all(f"is read as `{precision}.enabled` = true" in note for note in read)
    assert unread.startswith("`torch_autocast.lower_precision_safe_modules` has no effect here: the whole model")


def test_autocast_beside_the_section_that_says_the_same():
    both = {"torch_autocast": {"enabled": True, "dtype": "bf16"}, "bf16": {"enabled": True}}
    assert Config.load(both).precision == "bf16"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"amp": {"enabled": True}, "zero_optimization": {"stage": 1}}, "`amp.enabled` is refused with ZeRO"),
        ({"amp": {"enabled": True}, "fp16": {"enabled": True}}, "`amp.enabled` and `fp16.enabled` are both true"),
        (
            {"amp": {"enabled": True, "opt_level": "O7"}},
            "`amp.opt_level` must be one of O0, O1, O2, O3, auto, got 'O7'",
        ),
        (
            {"amp": {"enabled": True}, "torch_autocast": {"enabled": True}, "bf16": {"enabled": True}},
            "`amp.enabled` and",
        ),
        ({"torch_autocast": {"enabled": True, "dtype": "int8"}}, "`torch_autocast.dtype` = 'int8' is refused: use"),
        (
            {"torch_autocast": {"enabled": True, "dtype": "bf16"}, "fp16": {"enabled": True}},
            "`torch_autocast.dtype` = 'bf16' is refused beside `fp16.enabled`",
        ),
        ({"amp": 3}, "`amp` must be an object, got 3"),
    ],
)
def test_contradictions_are_a_sentence(keys, sentence):
    with pytest.raises(ConfigError) as error:
        Config.load(keys)
    assert sentence in str(error.value)
