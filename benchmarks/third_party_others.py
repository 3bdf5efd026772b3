"""Models of further packages, most of them on Flax."""

import dataclasses
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from third_party_case import Built, ThirdParty, cross_entropy, floats, labels, next_token, tokens

NOTHING = "Nothing."


def _positions(ids: Any) -> Any:
    import jax.numpy as jnp

    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)


def _recurrentgemma() -> Built:
    from recurrentgemma import jax as gemma

    kinds = (gemma.TemporalBlockType.RECURRENT, gemma.TemporalBlockType.ATTENTION)
    sizes = {"vocab_size": 96, "width": 32, "mlp_expanded_width": 64, "num_heads": 4, "lru_width": 32}
    sizes |= {"block_types": kinds, "embeddings_scale_by_sqrt_dim": True, "attention_window_size": 8}
    module = gemma.Griffin(gemma.GriffinConfig(**sizes, logits_soft_cap=30.0, scan_type=gemma.ScanType.LINEAR_NATIVE))

    def loss_fn(model, ids):
        return next_token(model(ids, _positions(ids), return_cache=False)[0], ids)

    return Built(module, loss_fn, tokens(12))


def _tunix(name: str) -> ModuleType:
    """A model's file without `tunix/__init__.py`, which imports trainers for reinforcement learning."""
    import importlib

    spec = find_spec("tunix")
    assert spec is not None
    package = sys.modules["tunix"] = ModuleType("tunix")
    package.__path__ = list(spec.submodule_search_locations or ())
    return importlib.import_module(f"tunix.models.{name}.model")


TUNIX = {"num_layers": 2, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "head_dim": 8, "num_kv_heads": 2}


def _tunix_decoder(name: str, kind: str, **sizes: Any) -> Built:
    models = _tunix(name)

    def model(rngs):
        return getattr(models, kind)(models.ModelConfig(**TUNIX, **sizes), rngs=rngs)

    def loss_fn(model, ids):
        import jax.numpy as jnp

        length = ids.shape[1]
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (len(ids), length, length))
        return next_token(model(ids, _positions(ids), None, mask)[0], ids)

    return Built(model, loss_fn, tokens(12))


def _tunix_llama() -> Built:
    return _tunix_decoder("llama3", "Llama3", vocab_size=96, rope_theta=10_000, norm_eps=1e-5)


def _tunix_qwen(**sizes: Any) -> Built:
    return _tunix_decoder("qwen3", "Qwen3", vocab_size=96, rope_theta=10_000, norm_eps=1e-6, **sizes)


def _tunix_gemma() -> Built:
    return _tunix_decoder("gemma3", "Gemma3", num_embed=96, sliding_window_size=4, param_dtype="float32")


def _mamba(package: str, kind: str, **changes: Any) -> Built:
    import importlib

    models = importlib.import_module(package)
    config = dataclasses.replace(getattr(models, f"{kind}Config").tiny(), vocab_size=96, chunk_size=8, **changes)

    def model(rngs):
        return getattr(models, f"{kind}ForCausalLM")(config, rngs=rngs)

    return Built(model, lambda model, ids: next_token(model(ids)["logits"], ids), tokens(16))


def _e3x() -> Built:
    """Energies of molecules of five atoms, by messages between all pairs of them."""
    import e3x
    from flax import linen as nn

    targets, sources = e3x.ops.sparse_pairwise_indices(5)

    class Energy(nn.Module):
        @nn.compact
        def __call__(self, positions: Any, kinds: Any) -> Any:
            between = positions[sources] - positions[targets]
            basis = e3x.nn.basis(
                between, max_degree=2, num=8, radial_fn=e3x.nn.reciprocal_bernstein, cutoff_fn=e3x.nn.smooth_cutoff
            )
            x = e3x.nn.Embed(num_embeddings=16, features=16)(kinds)
            for last in (False, True):
                message = e3x.nn.MessagePass(max_degree=0 if last else 2, include_pseudotensors=not last)
                y = e3x.nn.add(x, message(x, basis, dst_idx=targets, src_idx=sources))
                y = e3x.nn.Dense(16)(e3x.nn.silu(e3x.nn.Dense(16)(y)))
                x = e3x.nn.add(e3x.nn.change_max_degree_or_type(x, max_degree=2) if not last else x, y)
            return nn.Dense(1, use_bias=False)(x[:, 0, 0]).sum()

    class Molecules(nn.Module):
        @nn.compact
        def __call__(self, positions: Any, kinds: Any) -> Any:
            each = nn.vmap(Energy, in_axes=0, variable_axes={"params": None}, split_rngs={"params": False})
            return each()(positions, kinds)

    def loss_fn(model, batch):
        return ((model(batch["positions"], batch["kinds"]) - batch["energy"]) ** 2).mean()

    return Built(Molecules(), loss_fn, {"positions": floats(5, 3), "kinds": tokens(5, 9), "energy": floats()})


def _flaxmodels() -> Built:
    import flaxmodels

    module = flaxmodels.ResNet18(output="logits", pretrained=None, normalize=False, num_classes=10)
    loss_fn = lambda model, batch, train: cross_entropy(model(batch["image"], train=train), batch["label"])
    return Built(module, loss_fn, {"image": floats(32, 32, 3), "label": labels()})


def _nano_moe() -> Built:
    from nano_moe.config import NanoMoEConfig
    from nano_moe.model import NanoMoE

    sizes = {"vocab_size": 96, "d_model": 32, "n_layers": 2, "block_size": 16, "n_heads": 4, "dropout_rate": 0.0}

    def loss_fn(model, ids):
        return next_token(model(ids)[0], ids)

    return Built(NanoMoE(NanoMoEConfig(**sizes)), loss_fn, tokens(12))


def _penzai() -> Built:
    import jax
    from penzai import pz
    from penzai.models.simple_mlp import MLP

    make = lambda key: pz.unbind_params(MLP.from_config(key, [8, 32, 4]))
    skeleton, slots = make(jax.random.key(0))

    class Parameters:
        """What jzero asks of a model without Flax."""

        def init(self, key: Any, batch: Any) -> Any:
            return {variable.label: variable.value.data_array for variable in make(key)[1]}

    def loss_fn(params, batch):
        given = [slot.freeze() for slot in slots]
        named = [dataclasses.replace(slot.value, data_array=params[slot.label]) for slot in given]
        values = [dataclasses.replace(slot, value=value) for slot, value in zip(given, named, strict=True)]
        found = pz.bind_variables(skeleton, values)(pz.nx.wrap(batch["x"], "row", "features"))
        return ((found.unwrap("row", "features") - batch["y"]) ** 2).mean()

    return Built(Parameters(), loss_fn, {"x": floats(8), "y": floats(4, seed=1)})


MODELS = [
    ThirdParty("recurrentgemma", "recurrentgemma", _recurrentgemma, NOTHING),
    ThirdParty("tunix-llama3", "tunix", _tunix_llama, NOTHING),
    ThirdParty("tunix-qwen3", "tunix", _tunix_qwen, NOTHING),
    ThirdParty("tunix-qwen3-moe", "tunix", lambda: _tunix_qwen(num_experts=4, num_experts_per_tok=2), NOTHING),
    ThirdParty("tunix-gemma3", "tunix", _tunix_gemma, NOTHING),
    ThirdParty("mamba2", "mamba2-jax", lambda: _mamba("mamba2_jax", "Mamba2"), NOTHING),
    ThirdParty("mamba3", "mamba3-jax", lambda: _mamba("mamba3_jax", "Mamba3"), NOTHING),
    ThirdParty("e3x", "e3x", _e3x, "A molecule is a row, by `nn.vmap`; the tutorial numbers atoms through a batch."),
    ThirdParty("flaxmodels-resnet18", "flaxmodels", _flaxmodels, NOTHING),
    ThirdParty("nano-moe", "nano-moe-jax", _nano_moe, "Its load-balancing loss, no mean over rows, is left out."),
    ThirdParty(
        "penzai-mlp",
        "penzai",
        _penzai,
        "Its parameters are taken out of the model, which is no Flax module, and put back in the loss.",
    ),
]
