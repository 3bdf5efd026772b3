"""A small model whose optimizer is on NVMe: two large matrices, one parameter that stays on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

import jzero

WIDTH = 513  # a padded dimension


class Model:
    def init(self, key, batch):
        up, down = (jax.random.normal(k, s) / 20 for k, s in zip(jax.random.split(key), SHAPES, strict=True))
        return {"bias": jnp.zeros(WIDTH), "down": down, "up": up}


SHAPES = (40, WIDTH), (WIDTH, 40)


def loss_fn(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["up"] + params["bias"])
    return ((hidden @ params["down"] - batch["y"]) ** 2).astype(jnp.float32).mean()


def batches(n):
    rng = np.random.default_rng(0)
    return [{name: rng.standard_normal((16, 40), np.float32) for name in "xy"} for _ in range(n)]


def keep_compiled(folder):
    """Lets JAX take compiled programs from a folder; None ends it."""
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0 if folder is None else 0)
    compilation_cache.reset_cache()


def make_engine(nvme_path=None, *, config=None, offload=None, params="none", model=None, loss=loss_fn, **arguments):
    """On eight devices, stage 3; in memory without a path."""
    section = {"device": "nvme", "nvme_path": str(nvme_path), **(offload or {})}
    return jzero.initialize(
        model=model or Model(),
        loss_fn=loss,
        config={
            "train_batch_size": 16,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": 1000,
                "sub_group_size": 5000,  # groups that begin and end inside a shard
                **({} if nvme_path is None else {"offload_optimizer": section, "offload_param": {"device": params}}),
            },
            "aio": {"block_size": 4096, "queue_depth": 2},
            **(config or {}),
        },
        sample_batch=batches(1)[0],
        **arguments,
    )
