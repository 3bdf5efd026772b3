"""Notes: what a configuration says and does not get is named, once, and nothing else is."""

import pytest

from jzero.config import Config


def notes(**keys):
    return Config.load(keys).notes


def test_what_deepspeed_has_by_default_is_no_note():
    assert notes(zero_optimization={"stage": 2, "contiguous_gradients": True, "round_robin_gradients": False}) == []
    assert notes(wandb={"enabled": False, "project": "x"}, pipeline={}, steps_per_print="inf") == []
    assert notes(zero_optimization={"stage": 3, "max_live_parameters": 5, "stage3_prefetch_bucket_size": 5e8}) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("autotuning", {"enabled": True}),
        ("pipeline", {"stages": 2}),
        ("hybrid_engine", {"enabled": True}),
        ("expert_parallel", {"enabled": True, "autoep_size": 4}),
        ("nebula", {"enabled": True}),
        ("datastates_ckpt", {"host_cache_size": 16}),
        ("eigenvalue", {"enabled": True}),
        ("compile", {"deepcompile": True}),
        ("comms_logger", {"enabled": True}),
        ("sparse_gradients", True),
        ("zero_allow_untested_optimizer", True),
        ("vocabulary_size", 50257),
        ("sparse_attention", {"mode": "fixed"}),
        ("fp32_allreduce", True),
        ("min_lr", 5e-7),
        ("enable_cuda_graph", False),
    ],
)
def test_what_only_changes_speed_memory_or_reports_is_accepted_with_a_reason(key, value):
    (note,) = notes(**{key: value})
    assert note.startswith(f"`{key}` has no effect here: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zero_quantized_weights", True),
        ("zero_quantized_gradients", True),
        ("zeropp_loco_param", {"err_beta": 0.9}),
        ("zenflow", {"topk_ratio": 0.2}),
        ("mics_hierarchical_params_gather", True),
        ("leaf_module", {"names": ["mlp"]}),
        ("cpu_offload_use_pin_memory", True),
        ("stage3_gather_16bit_weights_on_model_save", True),
        ("elastic_checkpoint", True),
    ],
)
def test_what_only_changes_communication_is_accepted_with_a_reason(key, value):
    (note,) = notes(zero_optimization={"stage": 3, key: value})
    assert note.startswith(f"`zero_optimization.{key}` has no effect here: ")


STAGES = {
    "stage3_max_live_parameters": {3},
    "stage3_prefetch_bucket_size": {3},
    "allgather_bucket_size": {1, 2},
    "reduce_bucket_size": {0, 1, 2, 3},
    "mics_shard_size": {3},
}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("key", "stages"), STAGES.items())
def test_a_size_of_another_stage_is_named_with_its_own(key, stages, stage):
    stray = [n for n in notes(zero_optimization={"stage": stage, key: 4096}) if f"stage {stage} does not read" in n]
    assert len(stray) == (stage not in stages)
    for note in stray:
        assert note.startswith(f"`zero_optimization.{key}` = 4096 has no effect: ")
        assert all(str(other) in note.rpartition(";")[2] for other in (min(stages), max(stages)))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sub_group_size_is_for_an_offloaded_optimizer(stage):
    offloaded = {"offload_optimizer": {"device": "cpu"}}
    for zero in ({}, offloaded):
        found = [n for n in notes(zero_optimization={"stage": stage, "sub_group_size": 4096, **zero}) if "bounds" in n]
        assert bool(found) == (stage == 0 or not zero)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_offload_where_the_stage_has_nothing_to_offload(stage):
    for name, first in (("offload_optimizer", 1), ("offload_param", 3)):
        for device in ("none", "cpu"):
            found = notes(zero_optimization={"stage": stage, name: {"device": device}})
            assert len(found) == (device == "cpu" and stage < first)
            assert all(note.startswith(f"`zero_optimization.{name}` = {{...}} has no effect: ") for note in found)


def test_parameters_on_nvme_are_in_host_memory():
    (note,) = notes(zero_optimization={"stage": 3, "offload_param": {"device": "nvme"}})
    assert note.startswith("`zero_optimization.offload_param.device` = 'nvme' stands for host memory here: ")


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"bfloat16": {"enabled": True}}, "`bfloat16` is read as `bf16`"),
        ({"fp16 ": {}}, "`fp16 ` is read as `fp16`"),
        ({"bf16": {"enabled ": True}}, "`bf16.enabled ` is read as `bf16.enabled`"),
        ({"optimizer": {"type ": "SGD", "params": {}}}, "`optimizer.type ` is read as `optimizer.type`"),
        ({"optimizer": {"type": "SGD", " params": {}}}, "`optimizer. params` is read as `optimizer.params`"),
        ({"zero_optimization": True}, "`zero_optimization` = true is read as `zero_optimization.stage` = 1"),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload": True}},
            '`zero_optimization.cpu_offload` = true is read as `zero_optimization.offload_optimizer.device` = "cpu"',
        ),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": False}},
            "`zero_optimization.stage3_gather_fp16_weights_on_model_save` is read as "
            "`zero_optimization.stage3_gather_16bit_weights_on_model_save`",
        ),
        (
            {"fp16": {"initial_loss_scale": 4096}},
            "`fp16.initial_loss_scale` = 4096 is read as `fp16.initial_scale_power` = 12",
        ),
        (
            {"data_types": {"grad_accum_dtype": "torch.float32"}},
            "`data_types.grad_accum_dtype` = 'torch.float32' is read as 'fp32'",
        ),
        ({"train_batch_size": "10"}, "`train_batch_size` = '10' in quotes is read as 10"),
        ({"gradient_clipping": "0.5"}, "`gradient_clipping` = '0.5' in quotes is read as 0.5"),
        (
            {"zero_optimization": {"reduce_bucket_size": "5e8"}},
            "`zero_optimization.reduce_bucket_size` = '5e8' in quotes is read as 500000000",
        ),
        ({"prescale_gradients": "true"}, "`prescale_gradients` = 'true' in quotes is read as true"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1e-5}}},
            "`scheduler.params.warmup_num_steps` = 1e-05 is read as 1",
        ),
        (
            {"flops_profiler": {"enabled": False, "end_profile_step": 5}},
            "`flops_profiler.end_profile_step` is no known key, and has no effect because `flops_profiler.enabled` is "
            "false",
        ),
    ],
)
def test_what_is_not_read_as_it_stands_is_said(keys, note):
    assert notes(**keys) == [note]


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"_read_the_docs": "https://example.org"}, "`_read_the_docs` is read as a comment"),
        ({"//": "sizes"}, "`//` is read as a comment"),
        ({"int8": {"enabled": False}}, "`int8` is no known key, and asks for nothing"),
        ({"max_train_batch_size": None}, "`max_train_batch_size` is no known key, and asks for nothing"),
        ({"pipeline": {"schedule": "1F1B"}}, "`pipeline.schedule` is no known key, and has no effect"),
        ({"aio": {"enabled": True}}, "`aio.enabled` is no known key, and has no effect"),
        (
            {"autotuning": {"start_step": 5}},
            "`autotuning.start_step` is no known key, and has no effect; did you mean `start_profile_step`?",
        ),
        (
            {"activation_checkpointing": {"partitioned_activations": True}},
            "`activation_checkpointing.partitioned_activations` is no known key, and has no effect; did you mean "
            "`partition_activations`?",
        ),
        (
            {"activation_checkpointing": {"number_checkpoints": False}},
            "`activation_checkpointing.number_checkpoints` has no effect here: it sizes the buffer of "
            "contiguous_memory_optimization; the model decides how many blocks it recomputes",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": ["0.9", 0.99]}}},
            "`optimizer.params.betas` = ['0.9', 0.99] in quotes is read as [0.9, 0.99]",
        ),
    ],
)
def test_what_deepspeed_trains_with_and_never_reads_is_named(keys, note):
    assert notes(**keys) == [note]


def test_a_number_as_json_has_it_is_read_in_silence():
    assert notes(train_batch_size=1e2, zero_optimization={"stage": 3.0, "reduce_bucket_size": 5e8}) == []


def test_a_peak_that_is_not_the_learning_rate_is_named():
    def schedule(**params):
        optimizer = {"type": "AdamW", "params": {"lr": 1e-4}}
        return notes(optimizer=optimizer, scheduler={"type": "WarmupLR", "params": params})

    assert schedule(warmup_max_lr=1e-4) == schedule() == []
    assert schedule(warmup_max_lr=6e-4) == [
        "`scheduler.params.warmup_max_lr` = 0.0006 is what trains, and `optimizer.params.lr` = 0.0001 does not"
    ]


def test_notes_survive_resolving():
    config = Config.load({"train_batch_size": "16", "bfloat16": {"enabled": True}, "wandb": {"enabled": True}})
    assert config.resolve(world=8).notes == config.notes
    assert len(config.notes) == 3
