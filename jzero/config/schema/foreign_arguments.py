"""Hugging Face's training arguments that have no effect here, and why; a file that has them gets a note each."""

from collections.abc import Mapping

_COMPILED = "XLA compiles every step as a whole"
_BATCHES = "a thread makes the next batches, and every field of a batch is used"
_DEVICES = "JAX finds devices and processes, see docs/clusters.md"
_EVALUATION = "an evaluation takes as many rows a device as a micro-batch, in the precision of training"
_HUB = "nothing is pushed to a hub"
_LOG = "what is shown is one console's, and metrics.jsonl has every figure"
_SCRIPT = "it is for scripts, and this is one command"

_BY_REASON = {
    _COMPILED: (
        "torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval use_liger_kernel "
        "liger_kernel_config tf32"
    ),
    "JAX allocates a device's memory once": "torch_empty_cache_steps skip_memory_metrics",
    "a row that is left at the end of an epoch is in the first batch of the next": "dataloader_drop_last",
    _BATCHES: (
        "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names length_column_name "
        "accelerator_config past_index use_cache"
    ),
    "rows come in an order that `seed` alone decides": "data_seed",
    _DEVICES: (
        "local_rank ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
        "no_cuda use_cpu use_mps_device xpu_backend tpu_num_cores tpu_metrics_debug mp_parameters ray_scope"
    ),
    "mixed precision is what `bf16`, `fp16` and the DeepSpeed part say": (
        "fp16_opt_level fp16_backend half_precision_backend"
    ),
    _EVALUATION: (
        "per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps fp16_full_eval bf16_full_eval "
        "prediction_loss_only batch_eval_metrics include_for_metrics include_inputs_for_metrics eval_do_concat_batches "
        "eval_use_gather_object use_legacy_prediction_loop"
    ),
    _HUB: (
        "hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision push_to_hub_model_id "
        "push_to_hub_organization push_to_hub_token"
    ),
    _LOG: (
        "disable_tqdm log_level log_level_replica log_on_each_node logging_nan_inf_filter run_name project "
        "trackio_space_id trackio_bucket_id trackio_static_space_id debug include_tokens_per_second "
        "include_num_input_tokens_seen"
    ),
    _SCRIPT: "do_train do_eval do_predict",
    "a checkpoint is whole arrays, which all processes write": (
        "save_on_each_node save_safetensors enable_jit_checkpoint"
    ),
    "every sum has one order on given devices": "full_determinism",
    "a rematerialised block keeps its inputs": "gradient_checkpointing_kwargs activation_checkpointing_kwargs",
    "`data` counts the tokens of the whole batch": "average_tokens_across_devices",
}

FOREIGN: Mapping[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""The arguments, each with its reason."""
