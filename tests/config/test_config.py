"""Loading a DeepSpeed JSON: what is accepted, and the sentence for what is not."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.config.section import Section, key_paths, sections_of
from jzero.config.verdicts import verdict
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


def test_a_file_may_have_comments_and_trailing_commas(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{\n  // sizes\n  "train_batch_size": 16,  # samples\n  "bf16": {"enabled": true,},\n}\n')
    for source in (path, str(path), path.read_text(), {"train_batch_size": 16, "bf16": {"enabled": True}}):
        config = Config.load(source)
        assert (config.train_batch_size, config.precision) == (16, "bf16")
    assert Config.load(config) is config


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
    assert (
        Config.load({"zero_optimization": {"stage": 2, "cpu_offload": False}}).zero_optimization.offload_optimizer
        is None
    )
    assert "`zero_optimization.offload_optimizer.device`" in message(
        {"zero_optimization": {"stage": 2, "cpu_offload": True}}
    )


def test_null_is_the_same_as_not_given():
    assert Config.load({"optimizer": None, "train_batch_size": None, "fp16": None}) == Config.load({})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gradient_clipp1ng": 1}, "unknown key `gradient_clipp1ng`; did you mean `gradient_clipping`?"),
        ({"max_grad_norm": 1}, "unknown key `max_grad_norm`; did you mean `gradient_clipping`?"),
        ({"lr_scheduler": {}}, "unknown key `lr_scheduler`; did you mean `scheduler`?"),
        ({"micro_batch_size_per_gpu": 1}, "did you mean `train_micro_batch_size_per_gpu`?"),
        (
            {"zero_optimization": {"stage3_param_persitance_threshold": 1}},
            "`zero_optimization.stage3_param_persitance_threshold`; did you mean `stage3_param_persistence_threshold`?",
        ),
        ({"zero_optimization": {"offload_param": {"pin_memmory": True}}}, "did you mean `pin_memory`?"),
        ({"fp16": {"enabled ": True}}, "unknown key `fp16.enabled `; did you mean `enabled`?"),
        (
            {"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}},
            "unknown key `optimizer.params.learning_rate`",
        ),
        (
            {"optimizer": {"type": "Adam", "eps": 1e-8}},
            "unknown key `optimizer.eps`; it belongs under `optimizer.params`",
        ),
        ({"bf16": {"loss_scale": 0}}, "unknown key `bf16.loss_scale`; it belongs under `fp16`"),
        (
            {"optimizer": {"type": "SGD", "params": {"betas": [0, 0]}}},
            "unknown key `optimizer.params.betas`; known here: lr,",
        ),
        ({"stage": 3}, "unknown key `stage`; it belongs under `zero_optimization`"),
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
            "`fp16.min_loss_scale` must be at least 1 when the loss scale",
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
        ({"optimizer": {"params": {}}}, "`optimizer.type` is missing: one of Adam, AdamW, SGD, Lion"),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": [0.9, 2]}}},
            "`optimizer.params.betas` must be two numbers between 0 and 1, got [0.9, 2]",
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
            "`zero_optimization.max_live_parameters` says again what `stage3_max_live_parameters` says",
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


def test_missing_file(tmp_path):
    path = tmp_path / "absent.json"
    assert message(path) == f"{path}: cannot read the file: No such file or directory"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n  "train_batch_size": 16,\n  "fp16": {"enabled": true\n', "line 4, column 1"),
        ('{\n  "optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.99}}\n}', "line 2, column 63"),
        ('{\n  // a comment\n  "fp16": {"enabled": true} ]\n}', "line 3, column 29"),
        ("", "line 1, column 1"),
    ],
)
def test_wrong_json_names_line_and_column(tmp_path, text, place):
    path = tmp_path / "ds.json"
    path.write_text(text)
    if text:
        assert f"{path}: not valid JSON at {place}: " in message(path)


def test_a_key_twice_in_one_object():
    assert (
        message('{"fp16": {"enabled": true, "enabled": false}}')
        == "configuration: one object has `enabled` twice; keep one of them"
    )


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "`zero_optimization.offload_optimizer.device` = 'cpu'",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "`zero_optimization.offload_param.device` = 'nvme'",
        ),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "`zero_optimization.zero_quantized_weights` = True"),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "`zero_optimization.zero_hpz_partition_size` = 8"),
        ({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 5}}}, "`optimizer.type` = 'OneBitAdam'"),
        (
            {"optimizer": {"type": "Adam", "params": {"bias_correction": False}}},
            "`optimizer.params.bias_correction` = False",
        ),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, "`optimizer.params.max_grad_norm` = 1.0"),
        ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0}}}, "`scheduler.type` = 'OneCycle'"),
        ({"amp": {"enabled": True}}, "`amp` = {...}"),
        ({"pipeline": {"pipeline_parallel_size": 4}}, "`pipeline`"),
        ({"sparse_attention": {"mode": "fixed"}}, "`sparse_attention` = {...}"),
        ({"compression_training": {"layer_reduction": {"enabled": True}}}, "`compression_training` = {...}"),
        ({"gradient_allreduce_op": "sum"}, "`gradient_allreduce_op` = 'sum'"),
        ({"data_types": {"grad_accum_dtype": "BF16"}}, "`data_types.grad_accum_dtype`"),
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
    for off in (False, "false"):
        config = Config.load(
            {"prescale_gradients": off, "gradient_predivide_factor": "1.0", "zero_optimization": {"stage": stage}}
        )
        assert (config.prescale_gradients, config.gradient_predivide_factor, config.notes) == (False, 1.0, [])


def test_switched_off_is_never_refused():
    config = Config.load(
        {
            "amp": {"enabled": False, "opt_level": "O2"},
            "autotuning": {"enabled": False, "fast": False, "mp_size": 2},
            "compression_training": {"layer_reduction": {"enabled": False}},
            "sequence_parallel_size": 1,
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


def test_notes_name_what_has_no_effect():
    config = Config.load(
        {"zero_optimization": {"round_robin_gradients": True, "contiguous_gradients": True}, "wandb": {"enabled": True}}
    )
    assert [note.split(" has no effect here: ")[0] for note in config.notes] == [
        "`wandb`",
        "`zero_optimization.round_robin_gradients`",
    ]


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


PATHS = sorted(p for p in key_paths(Config) if "params" not in p and p.count(".") < 2)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(PATHS), position=st.integers(0, 40), letter=st.sampled_from("qxz_"))
def test_a_misspelt_key_is_never_accepted(path, position, letter):
    outer, _, key = path.rpartition(".")
    misspelt = key[: position % len(key)] + letter + key[position % len(key) :]
    if misspelt in {p.rpartition(".")[2] for p in PATHS}:
        return
    text = message({outer: {misspelt: 1}} if outer else {misspelt: 1})
    assert f"unknown key `{outer + '.' if outer else ''}{misspelt}`" in text


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(PATHS),
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.just("auto"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_any_value_is_accepted_or_a_sentence(path, value):
    outer, _, key = path.rpartition(".")
    with contextlib.suppress(ConfigError):  # and nothing else
        Config.load({outer: {key: value}} if outer else {key: value})
