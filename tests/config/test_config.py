"""Loading a DeepSpeed JSON: what is accepted, and the sentence for what is not."""

import pytest

from jzero.config import Config
from jzero.config.schema.section import Section, sections_of
from jzero.config.schema.verdicts import verdict
from jzero.errors import ConfigError


def message(source, **kwargs) -> str:
    with pytest.raises(ConfigError) as error:
        Config.load(source, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_empty_configuration_has_deepspeeds_defaults():
    config = Config.load({})
    assert config.gradient_clipping == 1.0
    assert (config.zero_optimization.stage, config.zero_optimization.stage3_param_persistence_threshold) == (0, 100_000)
    assert (config.precision, config.communication_data_type, config.optimizer, config.scheduler) == ("fp32",) + (
        None,
    ) * 3
    fp16 = config.fp16
    assert (fp16.loss_scale, fp16.initial_scale_power, fp16.loss_scale_window, fp16.hysteresis) == (0, 16, 1000, 2)
    assert (fp16.min_loss_scale, fp16.consecutive_hysteresis) == (1, False)


def test_a_configuration_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        Config.load({}).gradient_clipping = 2.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5e8, 500_000_000), ("5e8", 500_000_000), (100.0, 100), ("10", 10), (5_000_000_000, 5 * 10**9)],
)
def test_whole_numbers_in_the_spellings_people_use(value, expected):
    zero = Config.load({"zero_optimization": {"reduce_bucket_size": value}}).zero_optimization
    assert zero.reduce_bucket_size == expected
    assert isinstance(zero.reduce_bucket_size, int)


def test_the_sizes_of_stage_3_are_deepspeeds_and_survive_resolving():
    names = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
    for sizes, expected in (
        ({}, (50_000_000, 1_000_000_000, 1_000_000_000)),
        (dict(zip(names, (5e8, "2e9", 0), strict=True)), (500_000_000, 2_000_000_000, 0)),
    ):
        config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": 3, **sizes}})
        for zero in (config.zero_optimization, config.resolve(world=8).zero_optimization):
            assert tuple(getattr(zero, name) for name in names) == expected
            assert {type(getattr(zero, name)) for name in names} == {int}


def test_whether_a_bucket_size_was_given_survives_resolving():
    for sizes in ({}, {"reduce_bucket_size": 5e8}, {"allgather_bucket_size": 2e8}):
        zero = Config.load({"train_batch_size": 8, "zero_optimization": sizes}).resolve(world=8).zero_optimization
        assert (zero.reduce_bucket_size, zero.allgather_bucket_size) == (
            sizes.get("reduce_bucket_size"),
            sizes.get("allgather_bucket_size"),
        )


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_communication_overlaps_at_stage_3_unless_the_file_says_otherwise(stage):
    for keys, expected in (({}, stage == 3), ({"overlap_comm": True}, True), ({"overlap_comm": "false"}, False)):
        config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": stage, **keys}})
        assert config.resolve(world=8).zero_optimization.overlaps_comm is expected


@pytest.mark.parametrize(
    ("word", "dtype"), [("fp16", "fp16"), ("bfp16", "bf16"), ("BF16", "bf16"), ("fp32", "fp32"), (None, None)]
)
def test_the_words_for_a_communication_data_type(word, dtype):
    assert Config.load({"communication_data_type": word}).communication_data_type == dtype


def test_stage_3_names_with_and_without_their_prefix():
    for name in ("stage3_param_persistence_threshold", "param_persistence_threshold"):
        assert Config.load({"zero_optimization": {name: 7}}).zero_optimization.stage3_param_persistence_threshold == 7


def test_deprecated_spellings():
    assert Config.load({"bfloat16": {"enabled": True}}).precision == "bf16"
    assert Config.load({"zero_optimization": True}).zero_optimization.stage == 1
    assert Config.load({"zero_optimization": False}).zero_optimization.stage == 0
    for off in (False, "auto"):
        zero = Config.load({"zero_optimization": {"stage": 2, "cpu_offload": off}}).zero_optimization
        assert zero.offload_optimizer.device == "none"
    zero = Config.load(
        {"zero_optimization": {"stage": 3, "cpu_offload": True, "cpu_offload_param": "true"}}
    ).zero_optimization
    assert zero.offload_optimizer.device == zero.offload_param.device == "cpu"
    section = {"device": "cpu", "max_in_cpu": 7}
    zero = Config.load({"zero_optimization": {"stage": 3, "cpu_offload_param": section}}).zero_optimization
    assert (zero.offload_param.device, zero.offload_param.max_in_cpu) == ("cpu", 7)


@pytest.mark.parametrize("never", ["inf", "Infinity", float("inf"), "auto", None])
def test_steps_per_print_may_be_never(never):
    config = Config.load({"train_batch_size": 8, "steps_per_print": never}).resolve(world=8)
    assert config.steps_per_print is None


def test_null_is_the_same_as_not_given():
    assert Config.load({"optimizer": None, "train_batch_size": None, "fp16": None}) == Config.load({})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gradient_clipp1ng": 1}, "unknown key `gradient_clipp1ng`; did you mean `gradient_clipping`?"),
        ({"max_grad_norm": 1}, "unknown key `max_grad_norm`; did you mean `gradient_clipping`?"),
        ({"lr_scheduler": {"type": "WarmupLR"}}, "unknown key `lr_scheduler`; did you mean `scheduler`?"),
        ({"micro_batch_size_per_gpu": 1}, "did you mean `train_micro_batch_size_per_gpu`?"),
        (
            {"zero_optimization": {"stage3_param_persitance_threshold": 1}},
            "`zero_optimization.stage3_param_persitance_threshold`; did you mean `stage3_param_persistence_threshold`?",
        ),
        ({"zero_optimization": {"offload_param": {"pin_memmory": True}}}, "did you mean `pin_memory`?"),
        ({"zero_optimization": {"cpu_offload": "cpu"}}, "`zero_optimization.cpu_offload`; did you mean `offload_optim"),
        (
            {"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "none"}}},
            "`zero_optimization.cpu_offload`; `offload_optimizer` says it already: remove `cpu_offload`",
        ),
        ({"fp16": {"initial_loss_scale": 3}}, "`fp16.initial_loss_scale`; did you mean `initial_scale_power`?"),
        ({"moe": {"enabled": True}}, "unknown key `moe`; no known key resembles it"),
        ({None: 1}, "unknown key `None`; no known key resembles it"),
        ({"compile": {"enabled": True}}, "unknown key `compile.enabled`; no known key resembles it"),
        ({"learning_rate": 1e-3}, "unknown key `learning_rate`; did you mean `optimizer.params.lr`?"),
        ({"gradient_checkpointing": True}, "unknown key `gradient_checkpointing`; did you mean `jzero.remat`?"),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "warmup_max_lr": 1e-3}}},
            "unknown key `scheduler.params.warmup_max_lr`; did you mean `optimizer.params.lr`?",
        ),
        (
            {"activation_checkpointing": {"cpu_checkpoint": True}},
            "unknown key `activation_checkpointing.cpu_checkpoint`; did you mean `cpu_checkpointing`?",
        ),
        ({"aio": {"overlap_comm": True}}, "unknown key `aio.overlap_comm`; it belongs under `zero_optimization`"),
        ({"zero_optimization": {"grad_hooks": True}}, "unknown key `zero_optimization.grad_hooks`; no known key"),
        ({"tensor_parallel": {"enabled": True}}, "unknown key `tensor_parallel.enabled`; known here: autotp_size,"),
        (
            {"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}},
            "unknown key `optimizer.params.learning_rate`",
        ),
        (
            {"optimizer": {"type": "Adam", "eps": 1e-8}},
            "unknown key `optimizer.eps`; it belongs under `optimizer.params`",
        ),
        ({"bf16": {"loss_scale": 0}}, "unknown key `bf16.loss_scale`: remove it, as bf16 has the range of fp32"),
        (
            {"optimizer": {"type": "SGD", "params": {"betas": [0, 0]}}},
            "unknown key `optimizer.params.betas`; ",
        ),
        ({"stage": 3}, "unknown key `stage`; it belongs under `zero_optimization`"),
        (
            {"fp16": {"enabled": True, "enabled ": False}},
            "unknown key `fp16.enabled `; `fp16.enabled`, which it resembles, is there already",
        ),
        ({"fp16": {"gradient_clipping": 1}}, "unknown key `fp16.gradient_clipping`; it belongs at the top level"),
    ],
)
def test_unknown_keys_point_to_the_nearest_known_one(wrong, sentence):
    assert sentence in message(wrong)
    assert message(wrong, file="ds.json").startswith("ds.json: unknown key `")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"zero_optimization": {"stage": 4}}, "`zero_optimization.stage` must be 0, 1, 2 or 3, got 4"),
        ({"zero_optimization": 3}, "`zero_optimization` must be an object, got 3"),
        ({"train_batch_size": "many"}, "`train_batch_size` must be a whole number, got 'many'"),
        ({"train_batch_size": 2.5}, "`train_batch_size` must be a whole number, got 2.5"),
        ({"train_batch_size": True}, "`train_batch_size` must be a whole number, got True"),
        ({"train_batch_size": 0}, "`train_batch_size` must be a whole number at least 1, got 0"),
        ({"gradient_clipping": float("nan")}, "`gradient_clipping` must be a number, got nan"),
        ({"steps_per_print": "epoch"}, "`steps_per_print` must be a number of steps, got 'epoch'"),
        ({"fp16": {"enabled": "True,"}}, "`fp16.enabled` must be true or false, got 'True,'"),
        (
            {"fp16": {"initial_scale_power": 128}},
            "`fp16.initial_scale_power` must be a whole number between 0 and 127, got 128",
        ),
        (
            {"fp16": {"enabled": True, "min_loss_scale": 0}},
            "`fp16.min_loss_scale` must be a number above 0",
        ),
        ({"communication_data_type": "int8"}, "`communication_data_type` must be one of fp32, fp16, bf16, got 'int8'"),
        (
            {"zero_optimization": {"reduce_bucket_size": 0}},
            "`zero_optimization.reduce_bucket_size` must be a whole number at least 1, got 0",
        ),
        (
            {"zero_optimization": {"allgather_bucket_size": -5e8}},
            "`zero_optimization.allgather_bucket_size` must be a whole number at least 1, got -500000000.0",
        ),
        ({"gradient_predivide_factor": 0}, "`gradient_predivide_factor` must be a number above 0, got 0.0"),
        (
            {"prescale_gradients": True, "gradient_predivide_factor": 4},
            "`prescale_gradients` and `gradient_predivide_factor` both divide gradients; keep one of them",
        ),
        ({"optimizer": {"params": {}}}, "`optimizer.type` is missing: one of Adam, AdamW,"),
        ({"fp16": {"enabled": True, "hysteresis": 0}}, "`fp16.hysteresis` must be a whole number at least 1 when the"),
        ({"bf16": True}, '`bf16` must be an object, got True; write {"enabled": true}'),
        ({"optimizer": {"type": "AdmW"}}, "`optimizer.type` = 'AdmW' is refused: use AdamW"),
        ({"gradient_predivide_factor": 10**400}, "`gradient_predivide_factor` must be a number, got 1000"),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": [0.9, 2]}}},
            "`optimizer.params.betas` must be two numbers at least 0 and below 1 in fp32, got [0.9, 2]",
        ),
        ({"scheduler": {"params": {"warmup_num_steps": 3}}}, "`scheduler.type` is missing: one of WarmupLR,"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "`scheduler.params.total_num_steps` is missing"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "exp"}}},
            "must be one of log, linear, got 'exp'",
        ),
        (
            {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
            "`fp16.enabled` and `bf16.enabled` are both true; switch one of them off",
        ),
        (
            {"zero_optimization": {"stage3_max_live_parameters": 1, "max_live_parameters": 2}},
            "`zero_optimization.max_live_parameters` says again what `zero_optimization.stage3_max_live",
        ),
    ],
)
def test_wrong_values_are_one_sentence(wrong, sentence):
    assert f"ds.json: {sentence}" in message(wrong, file="ds.json") or sentence in message(wrong)


def test_everything_that_is_wrong_is_said_at_once():
    text = message({"gradient_cliping": 1, "train_batch_size": "x", "zero_optimization": {"stage": 9}})
    assert text.count(";") >= 2
    for part in ("gradient_cliping", "train_batch_size", "zero_optimization.stage"):
        assert part in text


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
            "`zero_optimization.offload_optimizer.device` = 'nvme'",
        ),
        ({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 5}}}, "`optimizer.type` = 'OneBitAdam'"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, "`optimizer.params.max_grad_norm` = 1.0"),
        ({"compression_training": {"layer_reduction": {"enabled": True}}}, "`compression_training` = {...}"),
        ({"quantize_training": {"enabled": True}}, "`quantize_training` = {...}"),
        ({"curriculum_learning": {"enabled": True}}, "`curriculum_learning` = {...}"),
        ({"progressive_layer_drop": {"enabled": True}}, "`progressive_layer_drop` = {...}"),
        ({"managed_gradient_accumulation": False}, "`managed_gradient_accumulation` = False"),
        ({"sequence_parallel_size": 2}, "`sequence_parallel_size` = 2"),
        ({"tensor_parallel": {"autotp_size": 2}}, "`tensor_parallel.autotp_size` = 2"),
        ({"tensor_parallel": {"tp": {"tp_size": 2}}}, "`tensor_parallel.tp.tp_size` = 2"),
    ],
)
def test_what_is_not_here_is_refused_with_advice(wanted, sentence):
    assert f"configuration: {sentence} is refused: " in message(wanted)


@pytest.mark.parametrize(
    ("key", "value"), [("prescale_gradients", True), ("prescale_gradients", "true"), ("gradient_predivide_factor", 4)]
)
def test_gradients_are_divided_on_request_where_deepspeed_does_it(key, value):
    shown = f"`{key}` = {4.0 if value == 4 else True!r} is refused"
    anyway = "16-bit reductions divide by the number of devices first without it"
    for stage in (1, 2):
        for zero in ({"stage": stage}, {"stage": stage, "reduce_scatter": True}):
            assert message({key: value, "zero_optimization": zero}) == (
                f"configuration: {shown} where gradients are scattered: "
                f"set `zero_optimization.reduce_scatter` to false or remove it; {anyway}"
            )
        Config.load({key: value, "zero_optimization": {"stage": stage, "reduce_scatter": False}})
    for zero in ({"stage": 3}, {"stage": 3, "reduce_scatter": False}):
        text = message({key: value, "zero_optimization": zero})
        assert text == f"configuration: {shown} at stage 3: remove it; {anyway}"
    for config in ({key: value}, {key: value, "zero_optimization": {"stage": 0}}):
        Config.load(config)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeeds_defaults_for_dividing_gradients_are_fine_at_every_stage(stage):
    for off in (False, 0):
        config = Config.load(
            {"prescale_gradients": off, "gradient_predivide_factor": 1.0, "zero_optimization": {"stage": stage}}
        )
        assert (config.prescale_gradients, config.gradient_predivide_factor, config.notes) == (False, 1.0, [])


def test_switched_off_is_never_refused():
    config = Config.load(
        {
            "amp": {"enabled": False, "opt_level": "O2"},
            "autotuning": {"enabled": False, "fast": False, "mp_size": 2},
            "compression_training": {"layer_reduction": {"enabled": False}},
            "data_efficiency": {
                "enabled": True,
                "data_sampling": {"enabled": False},
                "data_routing": {"enabled": False},
            },
            "fp16": {"enabled": False, "loss_scale_window": 0},
            "sequence_parallel_size": 1,
            "tensor_parallel": {"autotp_size": 1, "tp": {"tp_size": 1}},
            "gradient_allreduce_op": "mean",
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "none", "pin_memory": True},
                "offload_param": {"device": "cpu"},  # which DeepSpeed ignores below stage 3
                "zero_quantized_gradients": False,
            },
        }
    )
    assert config.zero_optimization.stage == 2


def _fields(cls: type[Section], path: str = "", around: str = ""):
    for name, field in cls.model_fields.items():
        kind = verdict(field).kind if isinstance(field.json_schema_extra, dict) else around
        yield f"{path}{name}", kind, verdict(field).reason or around, field
        for inner in sections_of(field.annotation):
            yield from _fields(inner, f"{path}{name}.", kind)


def test_every_key_has_a_verdict_and_all_but_the_honoured_a_reason():
    for path, kind, reason, field in _fields(Config):
        assert kind or field.is_required(), path
        assert reason or kind == "honoured" or field.is_required(), path
