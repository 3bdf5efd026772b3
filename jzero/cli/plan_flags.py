"""The options of `jzero plan` and its help."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from jzero import models
from jzero.plan.hardware.figures import GPUS
from jzero.plan.hardware.network import EXAMPLES

HELP = r"""Show what each ZeRO stage would hold and send on a cluster, and which setting to take. Needs no GPU.

Every stage, with and without state in host memory, is worked out by a closed form, in about a second each. The
recommended one is then compiled for the GPUs, where JAX's CUDA plugin is installed (`pip install 'jzero[plan]'`):
its memory is the compiler's own figure.

Examples, ready to copy:

    # the demo's model on one node of 8 H100s
    jzero plan configs/demo.json

    # 6.4B parameters on 64 H100s, 8 to a node
    jzero plan configs/gpt-1.5b.json model.n_layer=32 model.d_model=4096 \
        model.n_head=32 --gpus 64

    # on 32 A100s whose 4 nodes share 100 Gb/s each, compiling nothing
    jzero plan configs/gpt-1.5b.json --gpus 32 --gpu a100-80g \
        --nodes 4 --network 100gb-roce --closed-form

    # with another batch, stages 2 and 3, each of them compiled
    jzero plan configs/gpt2-small.json --stages 2,3 --compile-all \
        training_arguments.per_device_train_batch_size=16

    # tables and pictures in one file for the browser
    jzero plan configs/demo.json --html report.html

    # a published model; its largest micro-batch; the largest Llama
    jzero plan --model llama-2-7b --gpus 64 --seq-len 2048
    jzero plan --model gpt2-xl model.remat=true --max-batch
    jzero plan --model llama-2-7b model.remat=true --largest-model

    # for a program: the keys that the recommended setting sets
    jzero plan configs/demo.json --json | jq .recommendation.changes

The exit status is 2, with a sentence on standard error, where something does not fit together; it is 0 also where
no setting fits the GPUs.
"""

What: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN.json] [KEY=VALUE]...",
        help="The run file, unless --model names a model, and changes to it by dotted key.",
        show_default=False,
    ),
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Plan a published model, in bf16 with AdamW: {', '.join(models.SIZES)}.",
        show_default=False,
    ),
]
SeqLen: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a sequence: data.seq_len.", show_default=False)
]
MicroBatch: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Samples of a GPU and micro-batch.", show_default=False)
]
Gpus: TypeAlias = Annotated[int, typer.Option(min=1, help="GPUs in all.")]
Gpu: TypeAlias = Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}, or a .toml file.")]
Nodes: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Hosts that share the GPUs equally.", show_default="8 GPUs each")
]
NetworkName: TypeAlias = Annotated[
    str, typer.Option(help=f"Between nodes, such as {EXAMPLES}.", show_default="what such GPUs come with")
]
HostMemory: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1e6, metavar="GB", help="Of each node, for offloading.", show_default="shown, not limited"),
]
Stages: TypeAlias = Annotated[str, typer.Option(help="Stages to look at, such as 2,3.")]
ClosedForm: TypeAlias = Annotated[bool, typer.Option("--closed-form", help="Compile nothing.")]
MaxBatch: TypeAlias = Annotated[
    bool, typer.Option("--max-batch", help="Instead: the largest micro-batch that fits, per stage.")
]
LargestModel: TypeAlias = Annotated[
    bool, typer.Option("--largest-model", help="Instead: the largest model of the family that fits, per stage.")
]
CompileAll: TypeAlias = Annotated[bool, typer.Option("--compile-all", help="Compile every stage, which may take long.")]
Html: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write a report with pictures to this file too.", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object, in bytes and seconds.")]
