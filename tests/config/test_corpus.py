"""Ninety configurations that people have published: each resolves, or is refused in a sentence that names the key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jzero.config import Config, TrainingArguments
from jzero.config.schema.section import at
from jzero.config.show.report import lines
from jzero.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "ds_configs.jsonl"
FILES = {row["id"]: row["config"] for row in map(json.loads, GOLDEN.read_text().splitlines()[1:])}

REFUSED_BY_DEEPSPEED_TOO = {
    "10d9b5b8": "bf16.loss_scale",
    "435fd2aa": "zero_optimization.verbose",
    "65ba49a5": "tensor_parallel.enabled",
    "933d6a58": "tensor_parallel.enabled",
    "a2eea28b": "zero_optimization.stage3_param_persitance_threshold",
    "ee57d09a": "bf16.loss_scale",
}
UNKNOWN_KEYS = {
    "1c3d3419": "int8",
    "49b9c2b4": "flash_attention",
    "83d11412": "micro_batch_size_per_gpu",
    "b6325985": "disable_fused_adam",
}
NOT_HERE = {"59750837": "quantize_training", "6f615a72": "optimizer.type"}
REFUSED = REFUSED_BY_DEEPSPEED_TOO | UNKNOWN_KEYS | NOT_HERE

SPELLINGS = {
    "bfloat16": "bf16",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
}


def world_of(file: dict[str, Any]) -> int:
    """A number of devices that the file's batch sizes fit; eight where any number does."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (size if isinstance(size := file.get(name), int) else None for name in names)
    if total and micro:
        return max(1, total // (micro * (accumulation or 1)))
    return next(w for w in (8, 4, 2, 1) if not total or total % (w * (accumulation or 1)) == 0)


def leaves(file: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in file.items():
        where = at(path, SPELLINGS.get(key, key))
        if isinstance(value, dict) and where != "autotuning.arg_mappings":
            yield from leaves(value, where)
        else:
            yield where, value


def test_the_corpus_is_whole():
    assert len(FILES) == 90
    assert set(REFUSED) < set(FILES)


@pytest.mark.parametrize("name", sorted(set(FILES) - set(REFUSED)))
def test_a_published_configuration_resolves_to_what_it_says(name):
    file, world = FILES[name], world_of(FILES[name])
    known = {"world": world, "training_arguments": TrainingArguments(), "hidden_size": 64, "num_training_steps": 100}
    loaded = Config.load(file)
    resolved = loaded.resolve(**known)
    assert resolved.resolve(**known) == resolved
    by_path = {line.path: line for line in lines(resolved)}
    assert not any(line.origin == "open" for line in by_path.values())
    sizes = resolved.train_micro_batch_size_per_gpu, resolved.gradient_accumulation_steps
    assert resolved.train_batch_size == sizes[0] * sizes[1] * world
    for path, value in leaves(file):
        line = by_path.get(path)
        if line is None and value is not False:  # as cpu_offload may be
            assert any(f"`{path}`" in note for note in resolved.notes), path
        elif line and value is not None and value != "auto":
            same = line.value == (tuple(value) if isinstance(value, list) else value)
            assert same or any(f"`{path}`" in note for note in resolved.notes), (path, value, line.value)


@pytest.mark.parametrize(("name", "key"), sorted(REFUSED.items()))
def test_a_refusal_names_the_key(name, key):
    with pytest.raises(ConfigError) as error:
        Config.load(FILES[name], file="ds.json").resolve(world=8, training_arguments=TrainingArguments())
    assert str(error.value).startswith("ds.json: ")
    assert f"`{key}`" in str(error.value)
