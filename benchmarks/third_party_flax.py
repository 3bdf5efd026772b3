"""The models of Flax's own examples, which lie in its source distribution beside the library."""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from third_party_case import Built, ThirdParty, cross_entropy, floats, labels, next_token, tokens

EXAMPLES = Path(sys.prefix) / f"flax-{version('flax')}" / "examples"
"""Where `third_party.py` puts them in its environment."""
NOTHING = "Nothing."
NO_LAYOUTS = "The layouts over a mesh that its training script gives it (`shd_config`) are left out."


def _load(example: str, file: str = "models") -> ModuleType:
    """A file of an example; it imports the files beside it by their bare names."""
    folder = EXAMPLES / example
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(file, folder / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIZES = {"vocab_size": 96, "output_vocab_size": 96, "emb_dim": 32, "num_heads": 4, "num_layers": 2, "qkv_dim": 32}
SIZES |= {"mlp_dim": 64, "max_len": 32, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}


def _wmt() -> Built:
    models = _load("wmt")
    module = models.Transformer(models.TransformerConfig(**SIZES, deterministic=True, share_embeddings=True))

    def loss_fn(model, batch):
        return cross_entropy(model(batch["inputs"], batch["targets"]), batch["targets"])

    return Built(module, loss_fn, {"inputs": tokens(12), "targets": tokens(12, seed=1)})


def _lm1b() -> Built:
    models = _load("lm1b")
    module = models.TransformerLM(models.TransformerConfig(**SIZES, deterministic=True))
    return Built(module, lambda model, ids: cross_entropy(model(ids), ids), tokens(12))


def _nlp_seq() -> Built:
    models = _load("nlp_seq")
    module = models.Transformer(models.TransformerConfig(**SIZES))

    def loss_fn(model, batch):
        return cross_entropy(model(inputs=batch["ids"], train=True), batch["tags"])

    return Built(module, loss_fn, {"ids": tokens(12), "tags": tokens(12, seed=1)})


def _seq2seq() -> Built:
    module = _load("seq2seq").Seq2seq(teacher_force=True, hidden_size=32, vocab_size=16)

    def loss_fn(model, batch):
        import jax

        asked, answered = (jax.nn.one_hot(batch[name], 16) for name in ("asked", "answered"))
        return cross_entropy(model(asked, answered)[0], batch["answered"][:, 1:])

    asked, answered = tokens(8, 16), tokens(6, 16, seed=1)
    asked[:, 6] = 1  # where a question ends
    return Built(module, loss_fn, {"asked": asked, "answered": answered})


def _sst2() -> Built:
    sizes = {"embedding_size": 32, "hidden_size": 32, "vocab_size": 96, "output_size": 2}
    module = _load("sst2").TextClassifier(**sizes, dropout_rate=0.0, word_dropout_rate=0.0, deterministic=True)

    def loss_fn(model, batch):
        return cross_entropy(model(batch["ids"], batch["lengths"]), batch["label"])

    return Built(module, loss_fn, {"ids": tokens(12), "lengths": 3 + labels(9), "label": labels(2)})


def _imagenet() -> Built:
    models = _load("imagenet")
    module = models.ResNet(stage_sizes=[1, 1], block_cls=models.ResNetBlock, num_classes=10, num_filters=16)

    def loss_fn(model, batch, train):
        return cross_entropy(model(batch["image"], train=train), batch["label"])

    return Built(module, loss_fn, {"image": floats(32, 32, 3), "label": labels()}, axis="batch")


def _vae() -> Built:
    module = _load("vae").VAE(latents=8)

    def loss_fn(model, batch):
        import jax.numpy as jnp
        import optax

        mean, logvar = model.encoder(batch["x"])
        made = model.decoder(mean + jnp.exp(0.5 * logvar) * batch["noise"])
        likelihood = optax.sigmoid_binary_cross_entropy(made, batch["x"]).sum(-1)
        return (likelihood - 0.5 * (1 + logvar - mean**2 - jnp.exp(logvar)).sum(-1)).mean()

    return Built(module, loss_fn, {"x": (floats(784) > 0).astype("float32"), "noise": floats(8, seed=1)})


def _ppo() -> Built:
    module = _load("ppo").ActorCritic(num_outputs=4)

    def loss_fn(model, batch):
        import jax.numpy as jnp

        log_probabilities, values = model(batch["frames"])
        chosen = (log_probabilities * (batch["action"][:, None] == jnp.arange(4))).sum(-1)
        return (-chosen * batch["advantage"] + 0.5 * (values[:, 0] - batch["returned"]) ** 2).mean()

    batch = {"frames": 255 * abs(floats(84, 84, 4)).clip(0, 1), "action": labels(4)}
    return Built(module, loss_fn, batch | {"advantage": floats(), "returned": floats(seed=1)})


def _ogbg() -> Built:
    """One graph of 5 nodes and 8 edges a row."""
    module = _load("ogbg_molpcba").GraphConvNet(
        latent_size=32, num_mlp_layers=2, message_passing_steps=2, output_globals_size=3
    )

    def loss_fn(model, batch):
        import jax.numpy as jnp
        import jraph
        import optax

        rows = len(batch["nodes"])
        flat = lambda x: x.reshape(-1, *x.shape[2:])
        first = 5 * jnp.arange(rows)[:, None]  # nodes are numbered through all graphs
        graphs = jraph.GraphsTuple(
            nodes=flat(batch["nodes"]),
            edges=flat(batch["edges"]),
            senders=flat(batch["senders"] + first),
            receivers=flat(batch["receivers"] + first),
            n_node=jnp.full(rows, 5),
            n_edge=jnp.full(rows, 8),
            globals=jnp.zeros((rows, 3)),
        )
        return optax.sigmoid_binary_cross_entropy(model(graphs).globals, batch["labels"]).mean()

    ends = {name: tokens(8, 8, seed=seed) - 3 for seed, name in enumerate(("senders", "receivers"))}
    given = {"nodes": floats(5, 9), "edges": floats(8, 3), "labels": (floats(3) > 0).astype("float32")}
    return Built(module, loss_fn, given | ends)


def _gemma(layouts: bool = False, **extra: Any) -> Built:
    transformer = _load("gemma", "transformer")
    cfg = sys.modules["transformer_cfg"]
    kinds = (cfg.AttentionType.LOCAL_SLIDING, cfg.AttentionType.GLOBAL)
    sizes = {"num_layers": 2, "num_embed": 96, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "head_dim": 8}
    sizes |= {"num_kv_heads": 2, "final_logit_softcap": 30.0, "use_post_attn_norm": True, "use_post_ffw_norm": True}
    sizes |= {"attention_types": kinds, "sliding_window_size": 4, "use_qk_norm": True}
    if layouts:
        sizes |= {"shd_config": cfg.ShardingConfig.fsdp_tp_sharding()}

    def model(rngs):
        return transformer.Transformer(cfg.TransformerConfig(**sizes), rngs=rngs, **extra)

    def loss_fn(model, ids):
        mask = ids > 0
        inputs = transformer.build_positions_from_mask(mask), None, transformer.make_causal_attn_mask(mask)
        return next_token(model(ids, *inputs)[0], ids)

    return Built(model, loss_fn, tokens(12))


def _gemma_sown() -> Built:
    _load("gemma", "transformer")
    sow = sys.modules["sow_lib"].SowConfig(embeddings=True, mlp_hidden_topk=2, rs_after_ffw=True)
    return _gemma(sow_config=sow)


MODELS = [
    ThirdParty("flax-wmt", "flax examples", _wmt, NOTHING),
    ThirdParty("flax-lm1b", "flax examples", _lm1b, NOTHING),
    ThirdParty("flax-nlp-seq", "flax examples", _nlp_seq, NOTHING),
    ThirdParty("flax-seq2seq", "flax examples", _seq2seq, NOTHING),
    ThirdParty("flax-sst2", "flax examples", _sst2, NOTHING),
    ThirdParty("flax-imagenet", "flax examples", _imagenet, NOTHING),
    ThirdParty(
        "flax-vae",
        "flax examples",
        _vae,
        "The loss calls encoder and decoder and takes the noise from the batch: one key for all rows would give each "
        "device the same noise.",
    ),
    ThirdParty(
        "flax-ppo", "flax examples", _ppo, "The loss is that of a policy gradient and of the values, without clipping."
    ),
    ThirdParty(
        "flax-ogbg",
        "flax examples",
        _ogbg,
        "The loss puts the graphs of its rows together: a batch has a leading dimension, one graph a row.",
    ),
    ThirdParty("flax-gemma", "flax examples", _gemma, NO_LAYOUTS),
    ThirdParty("flax-gemma-sow", "flax examples", _gemma_sown, NO_LAYOUTS),
    ThirdParty("flax-gemma-layouts", "flax examples", lambda: _gemma(layouts=True), NOTHING),
]
