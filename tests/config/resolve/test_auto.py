"""Filling "auto" as Hugging Face's Trainer does."""

import pytest

from jzero.config import Config, TrainingArguments
from jzero.errors import ConfigError

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
ARGUMENTS = TrainingArguments(
    learning_rate=3e-4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    warmup_ratio=0.05,
    weight_decay=0.1,
    adam_beta1=0.8,
    adam_beta2=0.95,
    adam_epsilon=1e-6,
    max_grad_norm=0.5,
    bf16=True,
)


def test_the_table_of_hugging_face():
    config = Config.load(AUTO).resolve(world=8, training_arguments=ARGUMENTS, hidden_size=100, num_training_steps=210)
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (
        64,
        4,
        2,
    )
    assert (config.gradient_clipping, config.precision) == (0.5, "bf16")
    assert config.optimizer is not None
    params = config.optimizer.params
    assert (params.lr, params.betas, params.eps, params.weight_decay) == (3e-4, (0.8, 0.95), 1e-6, 0.1)
    assert config.scheduler is not None
    schedule = config.scheduler.params
    assert (schedule.warmup_min_lr, schedule.warmup_max_lr) == (0.0, 3e-4)
    assert (schedule.warmup_num_steps, schedule.total_num_steps) == (11, 210)  # 0.05 * 210 rounded up
    zero = config.zero_optimization
    assert (zero.reduce_bucket_size, zero.stage3_prefetch_bucket_size, zero.stage3_param_persistence_threshold) == (
        10_000,
        9_000,
        1_000,
    )


def test_below_stage_3_its_sizes_keep_their_defaults():
    config = Config.load({**AUTO, "zero_optimization": {**AUTO["zero_optimization"], "stage": 2}})
    zero = config.resolve(world=8, training_arguments=ARGUMENTS, num_training_steps=10).zero_optimization
    assert (zero.stage3_prefetch_bucket_size, zero.stage3_param_persistence_threshold) == (50_000_000, 100_000)


def test_resolving_twice_changes_nothing():
    known = {"world": 8, "training_arguments": ARGUMENTS, "hidden_size": 64, "num_training_steps": 100}
    once = Config.load(AUTO).resolve(**known)
    assert once.resolve(**known) == once
    assert once.resolve(world=8) == once
    assert "'auto'" not in repr(once)


def test_without_an_optimizer_section_adamw_comes_from_the_arguments():
    config = Config.load({"train_batch_size": 64}).resolve(world=8, training_arguments=ARGUMENTS)
    assert config.optimizer is not None
    assert (config.optimizer.type, config.optimizer.params.lr, config.optimizer.params.betas) == (
        "AdamW",
        3e-4,
        (0.8, 0.95),
    )
    assert config.scheduler is None
    assert Config.load({"train_batch_size": 64}).resolve(world=8).optimizer is None


def test_arguments_that_are_set_count_even_where_the_file_says_nothing():
    arguments = TrainingArguments(bf16=True, max_grad_norm=0.25, weight_decay=0.5, adam_beta1=0.7)
    file = {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    config = Config.load(file).resolve(world=8, training_arguments=arguments)
    assert (config.precision, config.gradient_clipping, config.optimizer.params.weight_decay) == ("bf16", 0.25, 0.5)


def test_arguments_left_at_their_defaults_do_not_contradict_the_file():
    file = {"train_batch_size": 16, "bf16": {"enabled": True}, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
    config = Config.load(file).resolve(world=8, training_arguments=TrainingArguments())
    assert (config.optimizer.params.lr, config.precision, config.train_micro_batch_size_per_gpu) == (0.1, "bf16", 2)


def test_batch_sizes_nobody_gave_come_from_the_arguments():
    config = Config.load({}).resolve(world=2, training_arguments=TrainingArguments())
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (
        16,
        8,
        1,
    )


def test_contradictions_are_listed_together():
    file = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
    }
    with pytest.raises(ConfigError) as error:
        Config.load(file, file="ds.json").resolve(world=8, training_arguments=ARGUMENTS)
    text = str(error.value)
    assert text.startswith("ds.json: contradicts the training arguments: ")
    for part in (
        "`train_micro_batch_size_per_gpu` = 1 but per_device_train_batch_size = 4",
        "`gradient_clipping` = 1.0 but max_grad_norm = 0.5",
        "`bf16.enabled` = False but bf16 = True",
        "`optimizer.params.lr` = 0.001 but learning_rate = 0.0003",
        "`optimizer.params.betas` = (0.9, 0.95) but adam_beta1, adam_beta2 = (0.8, 0.95)",
    ):
        assert part in text


def test_open_autos_are_listed_together():
    with pytest.raises(ConfigError) as error:
        Config.load(AUTO).resolve(world=8)
    text = str(error.value)
    assert text.startswith('configuration: "auto" has nothing to be filled from: ')
    for key in ("train_micro_batch_size_per_gpu", "gradient_clipping", "fp16.enabled", "optimizer.params.betas"):
        assert f"`{key}` (needs training_arguments)" in text
    assert "`scheduler.params.total_num_steps` (needs the number of training steps)" in text
    assert "`zero_optimization.stage3_param_persistence_threshold` (needs the model's hidden size)" in text
    assert "reduce_bucket_size" not in text  # changes no result, so jzero's own size is as good


def test_an_auto_that_nothing_fills_is_the_default_as_in_deepspeed():
    file = {
        "train_batch_size": 8,
        "data_parallel_size": "auto",
        "fp16": {"initial_scale_power": "auto"},
        "zero_optimization": {"stage": 3, "stage3_max_live_parameters": "auto", "offload_param": {"device": "auto"}},
    }
    resolved = Config.load(file).resolve(world=8)
    zero = resolved.zero_optimization
    assert (resolved.fp16.initial_scale_power, zero.stage3_max_live_parameters) == (16, 1_000_000_000)
    assert (zero.offload_param.device, resolved.data_parallel_size) == ("none", None)
    assert resolved.notes == [
        '`data_parallel_size` = "auto" is filled by nothing: its default, None, holds',
        '`fp16.initial_scale_power` = "auto" is filled by nothing: its default, 16, holds',
        "`zero_optimization.offload_param.device` = \"auto\" is filled by nothing: its default, 'none', holds",
        '`zero_optimization.stage3_max_live_parameters` = "auto" is filled by nothing: its default, 1000000000, holds',
    ]


def test_an_auto_that_deepspeed_could_not_train_with_must_be_filled():
    file = {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"momentum": "auto"}}}
    with pytest.raises(ConfigError, match=r"`optimizer.params.momentum` \(has no counterpart in training_arguments\)"):
        Config.load(file).resolve(world=8, training_arguments=TrainingArguments())


@pytest.mark.parametrize(("auto", "true"), [("fp16", "bf16"), ("bf16", "fp16")])
def test_an_auto_beside_the_other_16_bits_is_false(auto, true):
    file = {"train_batch_size": 8, auto: {"enabled": "auto"}, true: {"enabled": True}}
    resolved = Config.load(file).resolve(world=8)
    assert resolved.precision == true
    assert resolved.notes == [f'`{auto}.enabled` = "auto" is read as false, because `{true}.enabled` is true']
    assert Config.load(file).resolve(world=8, training_arguments=TrainingArguments()).precision == true
    with pytest.raises(ConfigError, match=r"`fp16.enabled` and `bf16.enabled` are both true"):
        Config.load(file).resolve(world=8, training_arguments=TrainingArguments(**{auto: True}))


def test_a_total_that_somebody_chose_wins_over_a_default_of_the_arguments():
    file = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    assert (
        Config.load(file).resolve(world=8, training_arguments=TrainingArguments()).train_micro_batch_size_per_gpu == 2
    )
    with pytest.raises(ConfigError, match="do not fit 8 data shards"):
        Config.load(file).resolve(world=8, training_arguments=TrainingArguments(per_device_train_batch_size=8))


def test_accumulation_alone_is_completed_by_the_arguments():
    config = Config.load({"gradient_accumulation_steps": 3})
    assert config.resolve(world=2, training_arguments=TrainingArguments()).train_batch_size == 48


def test_the_hidden_size_is_only_asked_for_where_a_size_needs_it():
    asked = []

    def hidden():
        asked.append(1)
        return 32

    sizes = {"reduce_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    for stage, zero, expected in (
        (2, sizes, 1),
        (3, sizes, 1),
        (3, {}, 0),
        (2, {"stage3_prefetch_bucket_size": "auto"}, 0),
    ):
        asked.clear()
        config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": stage, **zero}})
        resolved = config.resolve(world=8, hidden_size=hidden).zero_optimization
        assert len(asked) == expected
        assert resolved.reduce_bucket_size == (1024 if zero is sizes else None)
        assert resolved.stage3_param_persistence_threshold == (320 if zero is sizes and stage == 3 else 100_000)


def test_a_bucket_that_nobody_sizes_is_left_to_jzero():
    zero = {"allgather_bucket_size": "auto", "reduce_bucket_size": "auto", "overlap_comm": "auto"}
    resolved = Config.load({"train_batch_size": 8, "zero_optimization": zero}).resolve(world=8).zero_optimization
    assert (resolved.allgather_bucket_size, resolved.reduce_bucket_size, resolved.overlaps_comm) == (None, None, False)


def test_a_total_batch_size_of_auto_follows_from_the_other_two():
    file = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16}
    assert Config.load(file).resolve(world=8).train_batch_size == 128


def test_warmup_steps_win_over_the_ratio():
    assert TrainingArguments(warmup_steps=7, warmup_ratio=0.5).warmup_updates(100) == 7


def test_a_warmup_that_is_longer_than_the_run_is_noted():
    arguments = TrainingArguments(warmup_steps=50, max_steps=20)
    file = {"train_batch_size": 8}
    assert Config.load(file).resolve(world=8, training_arguments=arguments).notes == [
        "training arguments: a warm-up of 50 updates is longer than the run of 20, whose rate never reaches its highest"
    ]
    for quiet in (TrainingArguments(warmup_steps=20, max_steps=20), TrainingArguments(warmup_steps=50)):
        assert Config.load(file).resolve(world=8, training_arguments=quiet).notes == []
