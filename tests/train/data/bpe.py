"""A small tokenizer, trained on a few files of the standard library, with a chat template and its end of text."""

import functools
import json
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|endoftext|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@functools.cache
def _trained() -> str:
    folder = Path(sysconfig.get_path("stdlib"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[EOS], show_progress=False, initial_alphabet=alphabet)
    tokenizer.train([str(folder / name) for name in ("ast.py", "bisect.py", "calendar.py")], trainer)
    return tokenizer.to_str()


def save_tokenizer(folder: Path, template: str = TEMPLATE) -> Path:
    """Writes it as models have it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_trained())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS, "chat_template": template}))
    return folder


def library() -> Tokenizer:
    """The library's own object."""
    return Tokenizer.from_str(_trained())
