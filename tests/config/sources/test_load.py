"""Every form in which a configuration can be given, and the sentence for text that is none."""

import json

import pytest

from jzero.config import Config, load_run
from jzero.errors import ConfigError


def message(source, **kwargs) -> str:
    with pytest.raises(ConfigError) as error:
        Config.load(source, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_may_have_comments_and_trailing_commas(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{\n  // sizes\n  "train_batch_size": 16,  # samples\n  "bf16": {"enabled": true,},\n}\n')
    for source in (path, str(path), path.read_text(), {"train_batch_size": 16, "bf16": {"enabled": True}}):
        config = Config.load(source)
        assert (config.train_batch_size, config.precision) == (16, "bf16")
    assert Config.load(config) is config


@pytest.mark.parametrize("source", [None, 3, ["ds.json"], b"{}"])
def test_what_is_no_source(source):
    assert message(source) == f"configuration: must be a mapping, a path, or the text of a JSON object, got {source!r}"


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"fp16": {"enabled": true, "enabled": false}}', "`fp16.enabled` is there twice; keep one"),
        ('{"fp16": {}, "bf16": {"enabled": true}, "fp16": {}}', "`fp16` is there twice; keep one"),
        (
            '{"zero_optimization": {"stage": 1, "stage": 1, "offload_param": {"device": "cpu", "device": "none"}}}',
            "`zero_optimization.stage` and `zero_optimization.offload_param.device` are there twice; keep one",
        ),
        ('{"data_efficiency": {"a": [{"b": 1, "b": 2}]}}', "`data_efficiency.a.b` is there twice; keep one"),
    ],
)
def test_a_key_twice_in_one_object_is_named_with_its_place(text, sentence):
    assert message(text, file="ds.json") == f"ds.json: {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" \n", "is empty; it must hold one JSON object"),
        ('{"train_batch_size": ' + "9" * 5000 + "}", "not a configuration: a number has thousands of digits"),
        ('{"gradient_clipping": NaN}', "`gradient_clipping` must be a number, got nan"),
        ("[" * 10**5, "not a configuration: objects lie too deep in each other"),
    ],
)
def test_text_that_holds_no_configuration(tmp_path, text, sentence):
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert message(path) == f"{path}: {sentence}"


def test_a_message_quotes_a_value_no_longer_than_a_line():
    for value in ("x" * 10**6, [[1] * 1000] * 1000, 10**3000, {str(i): i for i in range(10**4)}):
        for keys in ({"train_batch_size": [value]}, {"fp16": [value]}, {"gradient_clipping": [value]}):
            assert len(message(keys)) < 2500


def test_infinity_as_python_writes_it():
    assert Config.load('{"train_batch_size": 8, "steps_per_print": Infinity}').steps_per_print is None


YAML = """
train_batch_size: 16
bf16: {enabled: true}
zero_optimization:
  stage: 3
  reduce_bucket_size: 5e8   # which YAML alone reads as text
  stage3_prefetch_bucket_size: 5.0e+7
"""


def test_yaml(tmp_path):
    path = tmp_path / "ds.yaml"
    path.write_text(YAML)
    config = Config.load(path)
    zero = config.zero_optimization
    assert (zero.reduce_bucket_size, zero.stage3_prefetch_bucket_size) == (500_000_000, 50_000_000)
    assert (config.train_batch_size, config.precision, config.notes) == (16, "bf16", [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "fp16: {}\ndata_efficiency: &it {x: *it}\n",
            "not valid YAML at line 2, column 18: found unconstructable recur",
        ),
        ("a: [1\n", "not valid YAML at line 2, column 1: expected ',' or ']'"),
        ("train_batch_size: 1\nfp16: {}\ntrain_batch_size: 2\n", "line 3, column 1: `train_batch_size` is there twice"),
        ("- 1\n", "must hold one YAML mapping, got [1]"),
        ("a: !!python/object:os.system x\n", "not valid YAML at line 1, column 4: could not determine a constructor"),
    ],
)
def test_yaml_that_is_none(tmp_path, text, sentence):
    path = tmp_path / "ds.yml"
    path.write_text(text)
    assert sentence in message(path)


def test_yaml_may_merge_what_it_has_said_before(tmp_path):
    path = tmp_path / "ds.yaml"
    path.write_text("fp16: &half {enabled: true, hysteresis: 3}\nbf16: {<<: {enabled: true}, enabled: false}\n")
    config = Config.load(path)
    assert (config.precision, config.bf16.enabled) == ("fp16", False)


ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
mixed_precision: bf16
num_processes: 2
"""


def test_accelerate_with_its_settings_inline(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    config = Config.load(path)
    zero = config.zero_optimization
    assert (config.precision, config.gradient_accumulation_steps, config.gradient_clipping) == ("bf16", 4, 0.5)
    assert (zero.stage, zero.offload_optimizer.device, zero.offload_param) == (3, "cpu", None)
    assert zero.stage3_gather_16bit_weights_on_model_save
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == ("auto", "auto")
    assert config.notes[0] == "`num_processes` = 2 is for Accelerate's launcher and has no effect here"


@pytest.mark.parametrize(
    ("file", "precision"),
    [({}, "fp16"), ({"fp16": {"enabled": "auto"}}, "fp16"), ({"fp16": {"enabled": False}}, "fp32")],
)
def test_accelerate_beside_a_deepspeed_file(tmp_path, file, precision):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 8, **file}))
    path = tmp_path / "accelerate.yaml"
    path.write_text("deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 2}\nmixed_precision: fp16\n")
    config = Config.load(path)
    assert (config.train_batch_size, config.zero_optimization.stage, config.precision) == (8, 0, precision)
    assert config.notes == ["`deepspeed_config.zero_stage` has no effect beside `deepspeed_config_file`"]
    (tmp_path / "run.json").write_text('{"model": {"family": "gpt"}, "deepspeed": "accelerate.yaml"}')
    run = load_run(tmp_path / "run.json")
    assert (run.deepspeed, run.deepspeed.notes) == (config, config.notes)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ({"deepspeed_config": {"zero_stge": 3}}, "`deepspeed_config.zero_stge`; did you mean `zero_stage`?"),
        (
            {"deepspeed_config": {}, "mixed_precison": "no"},
            "unknown key `mixed_precison`; did you mean `mixed_precision`?",
        ),
        ({"deepspeed_config": {"offload_param_device": "disk"}}, "must be one of none, cpu, nvme, got 'disk'"),
        ({"deepspeed_config": {"zero_stage": 3, "gradient_clipping": "x"}}, "`gradient_clipping` must be a number"),
        ({"deepspeed_config": {}, "mixed_precision": "fp8"}, "`mixed_precision` = 'fp8' is refused: use bf16 or fp16"),
    ],
)
def test_wrong_accelerate_files(file, sentence):
    assert sentence in message(file)


def test_the_oldest_files_of_accelerate_have_a_switch():
    config = Config.load({"deepspeed_config": {"zero_stage": 1}, "fp16": True, "use_mps_device": False})
    assert (config.precision, config.notes) == ("fp16", ['`fp16` = true is read as `mixed_precision` = "fp16"'])


def test_an_object_that_holds_itself():
    loop = {}
    loop["fp16"] = loop
    assert message({"fp16": loop}).endswith("not a configuration: objects lie too deep in each other")


def test_a_bare_no_of_accelerate_is_no(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("deepspeed_config: {zero_stage: 1}\nmixed_precision: no\n")
    assert Config.load(path).precision == "fp32"
