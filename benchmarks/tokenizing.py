"""How fast `jzero tokenize` is beside the tokenizer alone, and what memory it takes: text of the standard library.

`python benchmarks/tokenizing.py 1000` makes a text of 1000 MB and prints one JSON object.
"""

import json
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PIECE = 2**18
"""Characters that the tokenizer alone gets at once; sixteen such texts make a batch."""


def make_text(path: Path, megabytes: int) -> None:
    """Files of the standard library, one after the other, as often as needed."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(file.read_text(errors="ignore") for file in files).encode("ascii", "ignore")
    with path.open("wb") as out:
        for left in range(megabytes * 10**6, 0, -len(text)):
            out.write(text[:left])


def train_tokenizer(path: Path) -> None:
    """A BPE of 8192 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=8192, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train([str(file) for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))], trainer)
    tokenizer.save(str(path))


def alone(text: Path, tokenizer: Path) -> tuple[float, float]:
    """Seconds, and seconds of processors, that the library takes to encode the text, which nobody keeps."""
    library = Tokenizer.from_file(str(tokenizer))
    seconds = processors = 0.0
    with text.open() as file:
        while batch := [piece for piece in (file.read(PIECE) for _ in range(16)) if piece]:
            began, used = time.perf_counter(), time.process_time()
            library.encode_batch_fast(batch, add_special_tokens=False)
            seconds, processors = seconds + time.perf_counter() - began, processors + time.process_time() - used
    return seconds, processors


def main(megabytes: int) -> None:
    """Measures the two one after the other, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, tokenizer, out = folder / "text.txt", folder / "tokenizer.json", folder / "text.tokens"
        make_text(text, megabytes)
        train_tokenizer(tokenizer)
        command = [sys.executable, "-m", "jzero", "tokenize", str(text), "--tokenizer", str(tokenizer), "--json"]
        done = subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, text=True)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        made, (library, library_processors) = json.loads(done.stdout), alone(text, tokenizer)
    figures = {
        "megabytes": megabytes,
        "tokens": made["n_tokens"],
        "mb_per_second": round(megabytes / made["seconds"], 2),
        "tokenizer_alone_mb_per_second": round(megabytes / library, 2),
        "share": round(library / made["seconds"], 3),
        "share_of_processor_time": round(library_processors / (usage.ru_utime + usage.ru_stime), 3),
        "peak_memory_mb": round(usage.ru_maxrss * 1024 / 1e6),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
