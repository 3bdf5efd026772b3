"""The optimizer's update with state in host memory against the same update with state on the devices.

Interleaved rounds, medians of the ratio. On simulated CPU devices both memories are the same, so that this times the
machinery: slicing, copying, and losing one big fusion. On a GPU it also says what share of the PCIe link is used.

    python benchmarks/offload.py [--params 50e6] [--rounds 15]
"""

import argparse
import statistics
import time
from typing import Any

import jzero

jzero.simulate_devices(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jzero.offload.interface import UpdateInputs  # noqa: E402
from jzero.sharding.trees import split  # noqa: E402
from jzero.zero.build import Functional  # noqa: E402
from jzero.zero.state import TrainState  # noqa: E402


class Stack:
    """Layers of one square matrix each, stacked as a loop over layers has them."""

    def __init__(self, n_params: float):
        self.width = 1024
        self.n_layer = max(1, round(n_params / self.width**2))

    def init(self, key: jax.Array, batch: Any) -> dict[str, jax.Array]:
        """One stacked leaf."""
        return {"w": jax.random.normal(key, (self.n_layer, self.width, self.width)) / 32}


def loss_fn(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """A chain of products."""
    return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["w"])[0])


def built(n_params: float, zero: dict[str, Any]) -> Functional:
    """The functional layer of one setting."""
    mesh = jzero.make_mesh()
    config = {
        "train_batch_size": mesh.size,
        "zero_optimization": {"stage": 3, **zero},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    }
    return jzero.functional(
        model=Stack(n_params),
        loss_fn=loss_fn,
        config=jzero.Config.load(config).resolve(world=mesh.size),
        sample_batch={"x": jax.ShapeDtypeStruct((mesh.size, 1024), jnp.float32)},
        mesh=mesh,
    )


def update_of(fns: Functional) -> Any:
    """The compiled update alone: `state, grads -> state`."""
    spec = fns.spec

    def step(state: TrainState, grads: Any) -> tuple[Any, Any]:
        trained, _ = split(state.params, spec.trainable)
        one = jnp.float32(1)
        inputs = UpdateInputs(trained, state.opt_state, grads, one, one, one, jnp.asarray(True))
        updated = spec.offload.update(inputs)
        return updated.trained, updated.opt_state

    shardings = jax.tree.map(lambda x: x.sharding, (fns.state.params, fns.state.opt_state))
    return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def main() -> None:
    """Times both, and prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=50e6, help="parameters of the model")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    settings = {
        "devices": built(arguments.params, {}),
        "host": built(arguments.params, {"offload_optimizer": {"device": "cpu"}}),
    }
    updates, states, seconds = {}, {}, {name: [] for name in settings}
    grads = None
    for name, fns in settings.items():
        states[name] = fns.init(np.uint32(0))
        updates[name] = update_of(fns)
        grads = grads or jax.tree.map(lambda x: jnp.ones(x.shape), states[name].params)
        grads = jax.device_put(
            grads, jax.tree.map(lambda x: x.sharding.with_memory_kind("device"), states[name].params)
        )
    for i in range(arguments.rounds + 2):
        for name in settings:
            start = time.perf_counter()
            params, opt_state = jax.block_until_ready(updates[name](states[name], grads))
            states[name] = TrainState(**{**vars(states[name]), "params": params, "opt_state": opt_state})
            if i >= 2:  # the first rounds compile and warm up
                seconds[name].append(time.perf_counter() - start)
    ratio = statistics.median(h / d for h, d in zip(seconds["host"], seconds["devices"], strict=True))
    n_bytes = settings["host"].host_budget
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"update of {arguments.params / 1e6:.0f}M parameters on {len(jax.devices())} devices")
    print(f"  state on the devices {median['devices'] * 1e3:8.1f} ms")
    print(f"  state on the host    {median['host'] * 1e3:8.1f} ms, {n_bytes.state / 1e6:.0f} MB per device")
    print(f"  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
