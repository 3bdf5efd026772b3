"""Files of other programs are recognised as a whole, and DeepSpeed's own never are."""

import pytest

from jzero.config import Config
from tests.config.test_config import message
from tests.config.test_corpus import FILES

NEOX = {
    "pipe-parallel-size": 1,
    "num-layers": 12,
    "hidden-size": 768,
    "seq-length": 2048,
    "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
    "zero_optimization": {"stage": 1},
    "fp16": {"enabled": True},
}
INFERENCE = {"dtype": "fp16", "replace_with_kernel_inject": True, "tensor_parallel": {"tp_size": 2}}
MODEL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_layer": 12}
ARGUMENTS = {"learning_rate": 1e-4, "per_device_train_batch_size": 8, "output_dir": "out", "bf16": True}


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (
            NEOX,
            "is a configuration of GPT-NeoX, as `pipe-parallel-size`, `num-layers` and `hidden-size` tell: it holds",
        ),
        (
            INFERENCE,
            "is a configuration of DeepSpeed's inference, as `dtype`, `replace_with_kernel_inject` and `tensor",
        ),
        (MODEL, "is the configuration of a model of Hugging Face's transformers, as `architectures`, `model_type` and"),
        (ARGUMENTS, "holds training arguments of Hugging Face's Trainer, as `learning_rate`, `per_device_train_batch_"),
    ],
)
def test_the_file_of_another_program_is_one_sentence(file, sentence):
    text = message(file, file="ds.json")
    assert text.startswith(f"ds.json: {sentence}")
    assert ";" not in text.partition("; ")[2]


def test_none_of_the_published_files_is_taken_for_another_programs():
    from jzero.config.schema.other_programs import another_program

    assert [name for name, file in FILES.items() if another_program(file)] == []


def test_one_key_of_inference_in_a_training_file_is_a_note():
    assert len(Config.load({"enable_cuda_graph": False, "replace_with_kernel_inject": True, "bf16": {}}).notes) == 2
