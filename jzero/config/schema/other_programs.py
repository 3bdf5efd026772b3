"""Files that look like a DeepSpeed configuration and are another program's, recognised by the keys that only it has."""

from collections.abc import Mapping
from typing import NamedTuple

from jzero.base.types import Json


class _Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: what it is or holds.
        keys: what such files hold, and a training configuration of DeepSpeed does not.
        enough: so many of them are no accident.
        advice: what to do.
        never: keys that such files do not hold.
    """

    name: str
    keys: str
    enough: int
    advice: str
    never: str = ""


_KINDS = (
    _Kind(
        "is the configuration of a model of Hugging Face's transformers",
        "architectures model_type num_hidden_layers vocab_size torch_dtype hidden_act intermediate_size "
        "tie_word_embeddings transformers_version bos_token_id eos_token_id num_key_value_heads rms_norm_eps n_embd "
        "n_layer n_head attention_dropout layer_norm_eps initializer_range",
        3,
        "the model is built in Python, and this file is to say how it is trained",
    ),
    _Kind(
        "is a configuration of GPT-NeoX",
        "pipe_parallel_size model_parallel_size num_layers hidden_size num_attention_heads seq_length "
        "max_position_embeddings pos_emb rotary_pct no_weight_tying gpt_j_residual output_layer_parallelism norm "
        "attention_config init_method output_layer_init_method vocab_file merge_file tokenizer_type data_path "
        "data_impl train_data_paths train_iters lr_decay_iters lr_decay_style warmup checkpoint_factor eval_interval "
        "eval_iters log_interval distributed_backend checkpoint_activations checkpoint_num_layers bias_gelu_fusion "
        "scaled_upper_triang_masked_softmax_fusion hidden_dropout attention_dropout keep_last_n_checkpoints",
        3,
        "it holds model, data and training in one object; give DeepSpeed's keys alone, such as `optimizer`, `fp16` and "
        "`zero_optimization`",
    ),
    _Kind(
        "is a configuration of DeepSpeed's inference",
        "kernel_inject replace_with_kernel_inject enable_cuda_graph max_out_tokens min_out_tokens max_tokens "
        "replace_method injection_policy injection_policy_tuple return_tuple mp_size ep_size quant use_triton dtype "
        "triton_autotune checkpoint_config set_empty_params save_mp_checkpoint_path transposed_mode training_mp_size "
        "state_manager quantization tensor_parallel",
        2,
        "jzero trains, and has no use for it",
        "optimizer scheduler zero_optimization fp16 bf16 gradient_clipping gradient_accumulation_steps "
        "train_batch_size train_micro_batch_size_per_gpu",
    ),
    _Kind(
        "holds training arguments of Hugging Face's Trainer",
        "per_device_train_batch_size per_device_eval_batch_size learning_rate num_train_epochs output_dir max_steps "
        "lr_scheduler_type logging_steps save_steps warmup_ratio warmup_steps evaluation_strategy eval_steps "
        "save_total_limit report_to gradient_checkpointing",
        3,
        "name the file after `--training-arguments`, or put them into the part `training_arguments` of a run file",
        "optimizer zero_optimization",
    ),
)


def another_program(file: Mapping[str, Json]) -> str | None:
    """What a file is, if it is not a DeepSpeed configuration for training, and what to do; None where it may be one.

    >>> another_program({"num-layers": 12, "hidden-size": 768, "seq-length": 2048, "optimizer": {}})[:58]
    'is a configuration of GPT-NeoX, as `num-layers`, `hidden-s'
    """
    names = {str(key).replace("-", "_"): str(key) for key in file}
    for kind in _KINDS:
        found = [names[key] for key in names if key in kind.keys.split()]
        if len(found) >= kind.enough and not names.keys() & set(kind.never.split()):
            told = " and ".join([", ".join(f"`{key}`" for key in found[:2]), *(f"`{key}`" for key in found[2:3])])
            return f"{kind.name}, as {told} tell: {kind.advice}"
    return None
