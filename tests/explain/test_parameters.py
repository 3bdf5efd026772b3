"""What `engine.explain()` says of a small GPT, beside what the stages and the formulas of its layers say."""

import io
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

import jzero
from jzero.explain.parameters import explain, sent_by_links
from jzero.models import build as build_model
from jzero.start import functional
from tests.helpers import batches, build, config, mesh_of

D, VOCAB, T, N_LAYER = 64, 512, 8, 2
LAYER = {
    "attn.proj.bias": (D,),
    "attn.proj.kernel": (D, D),
    "attn.qkv.bias": (3 * D,),
    "attn.qkv.kernel": (D, 3 * D),
    "ln_1.bias": (D,),
    "ln_1.scale": (D,),
    "ln_2.bias": (D,),
    "ln_2.scale": (D,),
    "mlp.fc.bias": (4 * D,),
    "mlp.fc.kernel": (D, 4 * D),
    "mlp.proj.bias": (D,),
    "mlp.proj.kernel": (4 * D, D),
}
OUTSIDE = {"ln_f.bias": (D,), "ln_f.scale": (D,), "wpe": (T, D), "wte": (VOCAB, D)}
UNROLLED = {**{f"h.{i}.{name}": shape for i in range(N_LAYER) for name, shape in LAYER.items()}, **OUTSIDE}
SCANNED = {**{f"h.{name}": (N_LAYER, *shape) for name, shape in LAYER.items()}, **OUTSIDE}
BF16 = {"bf16": {"enabled": True}}
TOKENS = {"tokens": np.zeros((16, T), np.int32)}


def told_of(stage, *, scan_layers=False, remat=False, zero=None, accumulation=1, sections=None, **options):
    """What is said of a GPT; tracing is enough for that."""
    sizes = {"vocab_size": VOCAB, "seq_len": T, "d_model": D, "n_layer": N_LAYER, "n_head": 2}
    model = build_model({"family": "gpt", **sizes, "scan_layers": scan_layers, "remat": remat})
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **(zero or {})}
    sections = {**(BF16 if sections is None else sections), "zero_optimization": zero}
    given = config(stage, 16, accumulation, **sections)
    options = {"config": jzero.Config.load(given).resolve(world=8), "mesh": mesh_of(8), **options}
    return explain(functional(model=model.factory, loss_fn=model.loss_fn, sample_batch=TOKENS, **options))


KEEPS_NOTHING = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}


def travels(leaf):
    return (leaf.gathers, leaf.gather_dtype, leaf.gather_bytes), (leaf.scatters, leaf.scatter_dtype, leaf.scatter_bytes)


def times(n, dtype, size):
    """What `n` collectives of so many elements are."""
    return (n, dtype, n * size * jnp.dtype(dtype).itemsize) if n else (0, "", 0)


def is_read_backward(name):
    """A bias is added, and so is a position: the gradient needs neither."""
    return not name.endswith(("bias", "wpe"))


def use_of(name):
    # Normalisations keep their inputs, and have a rule of their own for it.
    return "custom_vjp_call" if name.endswith("scale") else "add" if name.endswith(("bias", "wpe")) else "dot_general"


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_parameter_is_there_under_its_name_and_shape(stage, scan_layers):
    leaves = told_of(stage, scan_layers=scan_layers)
    assert {leaf.name: leaf.shape for leaf in leaves} == (SCANNED if scan_layers else UNROLLED)
    assert all(leaf.trainable for leaf in leaves)
    if stage == 0:
        assert {leaf.placement for leaf in leaves} == {"whole on every device"}
    for leaf in leaves:
        whole = leaf.placement == "whole on every device"
        assert not whole or travels(leaf) == ((0, "", 0), (0, "", 0))
        # Below stage 3 small leaves stay whole; what counts layers is never divided.
        divided = 1 if scan_layers and leaf.name.startswith("h.") else 0
        assert whole == (stage == 0 or (stage < 3 and math.prod(leaf.shape) <= 16384))
        assert whole or leaf.placement == f"dimension {divided} over 8 devices"


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_below_stage_3_a_parameter_is_gathered_once_for_the_step(stage, scan_layers):
    found = {leaf.name: leaf for leaf in told_of(stage, scan_layers=scan_layers) if leaf.gathers}
    stacks = [f"h.{name}" for name, shape in LAYER.items() if math.prod(shape) * N_LAYER > 16384]
    assert {*found} == {"wte", *(stacks if scan_layers else ())}
    wte = found["wte"]
    # At stage 1 the gradients of both uses are added before they travel; at stage 2 each travels at once.
    assert travels(wte) == (times(1, "bfloat16", VOCAB * D), times(stage, "float32", VOCAB * D))
    assert wte.used_by == (("the step",) if stage == 1 else ("the step", "dot_general", "gather"))
    for name in stacks if scan_layers else ():
        size = math.prod(LAYER[name.removeprefix("h.")])
        # A stack travels layer by layer.
        assert travels(found[name]) == (times(N_LAYER, "bfloat16", size), times(N_LAYER, "float32", size))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_at_stage_3_a_parameter_is_gathered_for_both_passes_unless_it_is_kept(scan_layers, remat, keeps):
    zero = {} if keeps else KEEPS_NOTHING
    for leaf in told_of(3, scan_layers=scan_layers, remat=remat, zero=zero):
        in_block = leaf.name.startswith("h.")
        in_loop = scan_layers and in_block
        size = math.prod(leaf.shape[1:] if in_loop else leaf.shape)
        n_uses = N_LAYER if in_loop else 2 if leaf.name == "wte" else 1
        # A block that is run again needs all but what only leads to its result.
        again = remat and in_block and not leaf.name.endswith("mlp.proj.bias")
        passes = 2 if is_read_backward(leaf.name) or again else 1
        gathers = n_uses * passes
        if leaf.name == "wte":
            gathers = 3  # not for the gradient of the lookup
        if keeps and not in_loop:
            gathers = 1
        assert travels(leaf) == (times(gathers, "bfloat16", size), times(n_uses, "float32", size)), leaf.name
        uses = {"checkpoint"} if remat and in_block and not scan_layers else {use_of(leaf.name)}
        assert leaf.name == "wte" or {*leaf.used_by} <= {*uses, "checkpoint"}, leaf.name
    assert leaf.name == "wte"
    assert {*leaf.used_by} == {"gather", "dot_general"}


def test_dtypes_are_those_of_the_configuration():
    by_default = told_of(3, sections={})[-1]
    assert (by_default.gather_dtype, by_default.scatter_dtype) == ("float32", "float32")
    narrow = told_of(3, sections={"fp16": {"enabled": True}, "communication_data_type": "fp16"})[-1]
    assert (narrow.gather_dtype, narrow.scatter_dtype) == ("float16", "float16")


def test_it_says_what_lies_in_host_memory():
    on_host = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    leaves = {leaf.name: leaf.placement for leaf in told_of(3, zero=on_host)}
    assert leaves["wte"] == "dimension 0 over 8 devices, in host memory"
    assert "host" not in leaves["ln_f.scale"]


def test_accumulation_counts_every_micro_batch():
    wte = told_of(3, accumulation=2)[-1]
    assert (wte.gathers, wte.scatters) == (2 * 1, 2 * 2)


@pytest.mark.parametrize("zero", [{}, KEEPS_NOTHING])
def test_a_frozen_parameter_is_gathered_for_its_use_and_scattered_never(zero):
    leaves = told_of(3, zero=zero, trainable=lambda name: name != "h.1.mlp.fc.kernel")
    (frozen,) = (leaf for leaf in leaves if not leaf.trainable)
    assert frozen.name == "h.1.mlp.fc.kernel"
    assert frozen.used_by == ("dot_general",)
    assert travels(frozen) == (times(2 if zero else 1, "bfloat16", 4 * D * D), (0, "", 0))


class Branches(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(129, 136, rngs=rngs)
        self.in_branch = nnx.Param(jax.random.normal(rngs.params(), (131, 137)))

    def __call__(self, x: jax.Array) -> Any:
        kernel = self.in_branch[...]
        y = self.first(x)[:, :131]
        return jax.lax.cond(x.sum() > 0, lambda y: y @ kernel, lambda y: 2 * (y @ kernel), y)


@pytest.fixture(scope="module")
def branches():
    (batch,) = batches(1, 16, 129, 1)
    squares = lambda model, batch: (model(batch["x"]) ** 2).mean()
    return build(3, batch, model=Branches, loss_fn=squares).explain()


def test_a_branch_gets_its_parameter_in_full_in_front_of_it(branches):
    in_branch = next(leaf for leaf in branches if leaf.name == "in_branch")
    assert in_branch.used_by == ("cond",)
    # Padded from 131 rows, or from 137 columns, to what eight devices divide.
    assert in_branch.placement == "dimension 0 over 8 devices, padded to 136"
    assert travels(in_branch) == (times(1, "float32", 136 * 137), times(1, "float32", 136 * 137))


def test_the_table_has_a_row_for_every_parameter(branches):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(branches.table())
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in console.export_text().splitlines()]
    rows = [row for row in rows if row[0] in {leaf.name for leaf in branches}]
    assert [row[0] for row in rows] == [leaf.name for leaf in branches]
    cells = next(row for row in rows if row[0] == "in_branch")
    size = "74.5 kB"
    assert cells[1:] == ["131x137", cells[2], "cond", f"1 x float32, {size}", f"1 x float32, {size}"]


def test_json_says_the_same(branches):
    told = json.loads(branches.to_json())
    assert [entry["name"] for entry in told] == [leaf.name for leaf in branches]
    for entry, leaf in zip(told, branches, strict=True):
        assert entry == {**vars(leaf), "shape": list(leaf.shape), "used_by": list(leaf.used_by)}


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_at_two_levels_a_parameter_crosses_groups_once_a_step(scan_layers, accumulation):
    sections = {"zero": {"zero_hpz_partition_size": 4}, "accumulation": accumulation, "mesh": mesh_of(8, 2)}
    for leaf in told_of(3, scan_layers=scan_layers, **sections):
        assert leaf.placement.endswith("over 8 devices in 2 groups")
        part = math.prod(leaf.shape) // 4  # of each device of a group
        assert (leaf.across_gather_bytes, leaf.across_scatter_bytes) == (2 * part, 4 * part)
        assert leaf.gathers >= accumulation


def test_what_crosses_groups_is_added_up_by_links():
    leaves = told_of(3, zero={"zero_hpz_partition_size": 4}, mesh=mesh_of(8, 2))
    n_params = sum(math.prod(leaf.shape) for leaf in leaves)
    assert sent_by_links(leaves, {"shard": 4, "replica": 2}).across == 6 * n_params // 4 // 2
    mics = sent_by_links(told_of(3, zero={"mics_shard_size": 4}, mesh=mesh_of(8, 2)), {"shard": 4, "replica": 2})
    assert mics.across == 2 * 4 * n_params // 4 // 2
    assert mics.inside == sent_by_links(leaves, {"shard": 4, "replica": 2}).inside
