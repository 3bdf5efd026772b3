"""A step of training on a published checkpoint, whose gradients are read off its parameters."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

import jzero
from jzero.checkpoint.convert.hf_weights import open_sources
from jzero.models import BuiltModel, from_hf
from jzero.sharding.placement import path_name
from tests.golden.hf.make import sketch
from tests.helpers import mesh_of
from tests.models.common import with_params

GOLDEN = Path(__file__).parents[2] / "golden" / "hf"
RATE = 100.0


@dataclasses.dataclass(frozen=True)
class Form:
    """In which form a checkpoint is trained."""

    scan: bool
    devices: int
    stage: int


def by_path(tree: Any) -> dict[str, np.ndarray]:
    return {path_name(path): np.array(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def engine_of(model: BuiltModel, batch: Any, form: Form, **sections: Any) -> jzero.Engine:
    """One whose steps subtract a multiple of the gradients."""
    return jzero.initialize(
        model=model.factory,
        loss_fn=model.loss_fn,
        params=model.weights,
        sample_batch=batch,
        mesh=mesh_of(form.devices),
        config={
            "train_batch_size": len(batch["tokens"]),
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": form.stage, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "SGD", "params": {"lr": RATE}},
            **sections,
        },
    )


def logits_of(model: BuiltModel, params: Any, batch: Any) -> np.ndarray:
    module = model.factory(nnx.Rngs(0))
    module.eval()
    tokens = batch["tokens"] if model.n_labels else batch["tokens"][:, :-1]
    about = {name: batch[name] for name in ("mask", "types") if name in batch}
    return np.array(jax.jit(lambda p, tokens, about: with_params(module, p)(tokens, **about))(params, tokens, about))


def tensors_of(model: BuiltModel, leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays like the leaves, under the names and in the shapes of the file's tensors."""
    tensors = {}
    for leaf, source in open_sources(model.weights, {name: x.shape for name, x in leaves.items()}).items():
        parts = list(leaves[leaf]) if source.stacked else [leaves[leaf]]
        for entry, part in zip(source.tensors, parts, strict=True):
            tensors[entry.name] = part.T if source.transform == "transpose" else part
    return tensors


def check_step(folder: Path, form: Form, batch: Any, loss: float, grads: dict[str, np.ndarray]) -> None:
    """Checks loss and gradients of one step; `grads` holds each tensor's gradient or its sketch."""
    model = from_hf(folder, scan_layers=form.scan)
    engine = engine_of(model, batch, form)
    before = by_path(engine.params)
    metrics = engine.train_batch(batch)
    assert abs(float(metrics["loss"]) - loss) < 1e-5
    after = by_path(engine.params)
    found = tensors_of(model, {name: (before[name].astype(np.float64) - after[name]) / RATE for name in before})
    assert found.keys() == grads.keys()
    for name, expected in grads.items():
        got = sketch(name, found[name]) if expected.shape == (2,) != found[name].shape else found[name]
        scale = expected[0] if got is not found[name] else np.linalg.norm(expected)
        assert np.abs(got - expected).max() < 1e-4 * max(scale, 1e-3), name


def read_alone(model):
    """The parameters of a checkpoint, without an engine."""
    shapes = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: model.factory(nnx.Rngs(0))), nnx.Param))
    named = {path_name(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(shapes)}
    sources = open_sources(model.weights, named)
    read = lambda path, x: sources[path_name(path)].read((slice(None),) * x.ndim, np.float32)
    return jax.tree_util.tree_map_with_path(read, shapes)
