"""Two levels and MiCS train as flat stage 3 does, and send across groups once a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jzero
from jzero.gather.schedule import loop_pipeline
from jzero.plan import read_program
from jzero.sharding.trees import is_placement
from tests.helpers import assert_equal_runs, batches, build, train
from tests.zero.two_levels import data, gpt, net, tokens, trained, zero_of

FULL = pytest.mark.full
MESHES = [(8, 2), (8, 4), (6, 2)]
"""Devices, and the groups that they form: 2 x 4, 4 x 2, 2 x 3."""


@pytest.mark.parametrize("kind", ["two levels", "MiCS"])
@pytest.mark.parametrize(
    ("n_devices", "replica", "accumulation"),
    [
        pytest.param(n, replica, a, marks=[] if (n, replica, a) in {(8, 2, 4), (6, 2, 1)} else FULL)
        for n, replica in MESHES
        for a in (1, 4)
    ],
)
def test_groups_train_as_flat_stage_3_does(kind, n_devices, replica, accumulation):
    if kind == "MiCS" and n_devices == 6:
        pytest.skip("covered by the meshes of 8 devices")
    flat = trained("flat", 1, accumulation, n_devices, 30)
    grouped = trained(kind, replica, accumulation, n_devices, 30)
    np.testing.assert_allclose(grouped.losses, flat.losses, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(grouped.norms, flat.norms, rtol=2e-6, atol=1e-6)


def across(engine):
    """What the compiled step sends over `replica`: kind -> elements that arrive or are added, and how often."""
    program = engine.functional.program.lower(engine.functional.state, engine.functional.batch).compile()
    found = {}
    for c in read_program(program, engine.mesh).collectives:
        if c.axes == ("replica",):
            n, times = found.get(c.kind, (0, 0))
            found[c.kind] = (n + int(np.prod(c.shape)) * c.executions, times + c.executions)
    return found


def group_elements(engine):
    """Elements of the parts that a device has of its group's copy, and how many parameters are divided."""
    divided = [p.in_group for p in jax.tree.leaves(engine.placements, is_leaf=is_placement) if p.dim is not None]
    return sum(int(np.prod(p.shard_shape)) for p in divided), len(divided)


@pytest.mark.parametrize("accumulation", [4, pytest.param(1, marks=FULL)])
def test_two_levels_gather_and_scatter_across_groups_once_a_step(accumulation):
    engine = net("two levels", 2, accumulation)
    n_elements, n_leaves = group_elements(engine)
    assert across(engine) == {"all-gather": (n_elements, n_leaves), "reduce-scatter": (n_elements, n_leaves)}


@pytest.mark.parametrize("accumulation", [4, pytest.param(1, marks=FULL)])
def test_mics_adds_across_groups_once_a_step(accumulation):
    engine = net("MiCS", 2, accumulation)
    n_elements, _ = group_elements(engine)
    assert {kind: n for kind, (n, _) in across(engine).items()} == {"all-reduce": n_elements}


@FULL
@pytest.mark.parametrize("scan_layers", [True, False])
def test_a_tied_embedding_crosses_groups_once_for_all_its_uses(scan_layers):
    engine = gpt("two levels", 2, 2, scan_layers=scan_layers)
    n_elements, _ = group_elements(engine)
    assert {n for n, _ in across(engine).values()} == {n_elements}


def test_the_state_is_divided_over_all_devices_in_an_order_that_needs_no_transposing():
    engine = net("two levels", 2)
    kernel = engine.state.params["second"]["kernel"]  # of 131 rows, 136 with padding, and 8 columns
    assert kernel.sharding.spec == P(None, ("shard", "replica"))
    for device, index in kernel.sharding.devices_indices_map(kernel.shape).items():
        replica, shard = divmod(device.id, 4)
        assert index[1].start == shard * 2 + replica
    moments = [x for x in jax.tree.leaves(engine.state.opt_state) if x.shape == kernel.shape]
    assert [x.sharding for x in moments] == [kernel.sharding] * 2


SIXTEEN = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 32}}}


@pytest.mark.parametrize(
    ("precision", "replica", "scan_layers"),
    [
        pytest.param(p, r, s, marks=[] if (p, r, s) == ("fp16", 4, True) else FULL)
        for p in SIXTEEN
        for r in (2, 4)
        for s in (True, False)
    ],
)
def test_16_bits_skip_the_same_steps_and_reach_the_same_loss(precision, replica, scan_layers):
    runs = []
    for kind in ("flat", "two levels"):
        engine = gpt(kind, replica, scan_layers=scan_layers, **SIXTEEN[precision])
        metrics = [engine.train_batch(batch) for batch in tokens(12, 2)]
        runs.append({key: [float(m[key]) for m in metrics] for key in ("loss", "skipped_steps", "loss_scale")})
    flat, two = runs
    np.testing.assert_allclose(two["loss"], flat["loss"], atol=5e-3)
    assert two["skipped_steps"] == flat["skipped_steps"]
    assert two["loss_scale"] == flat["loss_scale"]
    assert (flat["skipped_steps"][-1] > 0) == (precision == "fp16")


VARIANTS = {
    "optimizer in host memory": {"zero": {"offload_optimizer": {"device": "cpu"}}},
    "all of it in host memory": {"zero": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}},
    "frozen": {"trainable": lambda name: "mlp" in name},
    "frozen in host memory": {"trainable": lambda name: "mlp" in name, "zero": {"offload_param": {"device": "cpu"}}},
    "unrolled": {"scan_layers": False},
    "Muon": {"optimizer": {"type": "Muon", "params": {"lr": 0.01}}},
    "Lamb": {"optimizer": {"type": "Lamb", "params": {"lr": 0.01}}},
    "gradients in bf16": {"communication_data_type": "bf16"},
}


@pytest.mark.parametrize("kind", ["two levels", pytest.param("MiCS", marks=FULL)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "all of it in host memory" else FULL) for n in VARIANTS]
)
def test_every_way_to_train_is_the_same_in_groups(kind, name):
    flat, grouped = (train(gpt(k, 2, width=64, **VARIANTS[name]), tokens(3, 2)) for k in ("flat", kind))
    if name == "gradients in bf16":  # which rounds the sum of a group once more
        np.testing.assert_allclose(grouped.losses, flat.losses, rtol=2e-3)
        np.testing.assert_allclose(grouped.norms, flat.norms, rtol=3e-2)
        return
    # Where a gradient is nothing but rounding, such as that of the keys' bias, Adam makes a step of it, of 0.01 here.
    assert_equal_runs(grouped, flat, atol=3e-3)


@FULL
@pytest.mark.parametrize("params", ["none", "cpu"])
def test_an_optimizer_in_files_trains_as_flat_stage_3_does(params, tmp_path):
    runs = []
    for kind in ("flat", "two levels"):
        files = {"device": "nvme", "nvme_path": str(tmp_path / kind)}
        (tmp_path / kind).mkdir()
        zero = {"offload_optimizer": files, "offload_param": {"device": params}}
        runs.append(train(gpt(kind, 2, width=64, zero=zero), tokens(3, 2)))
    assert_equal_runs(runs[1], runs[0], atol=3e-3)


def test_rows_that_the_devices_do_not_divide_are_evaluated_alike():
    (batch,) = data(1, 8, 1)
    some = {name: x[:11] for name, x in batch.items()}
    flat, two = (float(net(kind).eval_batch(some)["loss"]) for kind in ("flat", "two levels"))
    assert two == pytest.approx(flat, rel=1e-6)


class Twice:
    """A stack that two loops walk over, or one loop and something else; the loss may weigh its rows."""

    def __init__(self, uses: str):
        self.uses = uses

    def init(self, key, batch):
        return {"w": 0.05 * jax.random.normal(key, (3, 160, 160)), "out": jax.random.normal(key, (160, 128))}

    def loss(self, params, batch):
        x, layer = batch["x"], lambda x, w: (x + jnp.tanh(x @ w), None)
        for _ in range(self.uses.count("loop")):
            x, _ = jax.lax.scan(layer, x, params["w"])
        x = x @ params["w"].sum(0) if "sum" in self.uses else x
        error = ((x @ params["out"] - batch["y"]) ** 2).mean(1)
        if "weights" not in self.uses:
            return error.mean()
        weights = jnp.abs(batch["y"][:, 0])
        return jzero.Mean((error * weights).sum(), weights.sum())


@pytest.mark.parametrize(
    "uses",
    ["loop", pytest.param("loop, loop", marks=FULL), pytest.param("loop, sum", marks=FULL), "loop, weights"],
)
def test_gradients_that_pipelines_add_up_are_those_that_are_added_outside(uses, monkeypatch):
    monkeypatch.setattr("jzero.zero.spec.platform", lambda _: "gpu")  # so that loops are pipelines here too
    added = []
    inside = loop_pipeline._adding
    monkeypatch.setattr(loop_pipeline, "_adding", lambda *a: added.append(inside(*a)) or added[-1])
    steps, model = batches(3, 48, 160, 128), Twice(uses)
    runs = []
    for kind in ("flat", "two levels"):
        sections = {"zero_optimization": zero_of(kind, 8, 2)}
        options = {"replica": 1 if kind == "flat" else 2, "accumulation": 3, "sections": sections}
        engine = build(3, steps[0], model=model, loss_fn=model.loss, **options)
        assert engine.functional.spec.grad_reduce.pipelined
        runs.append(train(engine, steps))
    assert_equal_runs(runs[1], runs[0], rtol=1e-4, atol=1e-5)
    assert any(added) == ("weights" not in uses)
