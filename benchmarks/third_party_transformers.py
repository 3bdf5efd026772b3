"""Models of Hugging Face's transformers, whose Flax classes hold a Linen module as `.module`."""

from collections.abc import Callable
from typing import Any

from third_party_case import Built, ThirdParty, cross_entropy, floats, labels, next_token, tokens

MODULE = "The class wraps a Linen module; that, `.module`, is the model."
SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {"intermediate_size": 64, "max_position_embeddings": 64}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _module(kind: str, configuration: str, **sizes: Any) -> Any:
    """The Linen module of a class, without the weights that the class would make."""
    import transformers

    return getattr(transformers, kind)(getattr(transformers, configuration)(**sizes), _do_init=False).module


def _masked(kind: str, configuration: str, **sizes: Any) -> Built:
    """An encoder that finds masked tokens again."""
    ids = tokens(12)
    batch = {"ids": ids, "mask": (ids % 5 > 0).astype("int32"), "targets": tokens(12, seed=1)}

    def loss_fn(model, batch):
        ids = batch["ids"]
        inputs = {"token_type_ids": ids * 0, "position_ids": _positions(ids)}
        if kind != "FlaxAlbertForMaskedLM":
            inputs["head_mask"] = None
        return cross_entropy(model(ids, batch["mask"], **inputs).logits, batch["targets"])

    return Built(_module(kind, configuration, **sizes), loss_fn, batch)


def _positions(ids: Any) -> Any:
    import jax.numpy as jnp

    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)


def _causal(kind: str, configuration: str, **sizes: Any) -> Built:
    """A decoder that continues text."""

    def loss_fn(model, ids):
        return next_token(model(ids, ids * 0 + 1, _positions(ids)).logits, ids)

    return Built(_module(kind, configuration, **sizes), loss_fn, tokens(12))


def _distilbert() -> Built:
    sizes = {"vocab_size": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
    module = _module("FlaxDistilBertForMaskedLM", "DistilBertConfig", **sizes, dropout=0.0, attention_dropout=0.0)
    return Built(module, lambda model, ids: cross_entropy(model(ids, ids * 0 + 1).logits, ids), tokens(12))


def _big_bird() -> Built:
    """Attention to a window and to random blocks."""

    def loss_fn(model, ids):
        return cross_entropy(model(ids, ids * 0 + 1, ids * 0, _positions(ids), None).logits, ids)

    sizes = BERT | {"max_position_embeddings": 128, "block_size": 4, "num_random_blocks": 1}
    return Built(_module("FlaxBigBirdForMaskedLM", "BigBirdConfig", **sizes), loss_fn, tokens(64))


def _bloom() -> Built:
    def loss_fn(model, ids):
        return next_token(model(ids, ids * 0 + 1).logits, ids)

    sizes = {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    return Built(_module("FlaxBloomForCausalLM", "BloomConfig", **sizes), loss_fn, tokens(12))


def _seq2seq(kind: str, configuration: str, **sizes: Any) -> Built:
    """An encoder with a decoder whose inputs are the targets, shifted."""

    def loss_fn(model, batch):
        ids, targets = batch["ids"], batch["targets"]
        inputs = {"attention_mask": ids * 0 + 1, "decoder_attention_mask": targets * 0 + 1}
        inputs |= {"decoder_input_ids": targets}
        if not configuration.startswith("T5"):
            inputs |= {"position_ids": _positions(ids), "decoder_position_ids": _positions(targets)}
        return next_token(model(ids, **inputs).logits, targets)

    module = _module(kind, configuration, **sizes)
    return Built(module, loss_fn, {"ids": tokens(12), "targets": tokens(10, seed=1)})


BART = {"vocab_size": 96, "d_model": 32, "max_position_embeddings": 64, "dropout": 0.0}
BART |= {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 64))}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}


def _t5() -> Built:
    """Its Flax class calls `jnp.clip` by names that JAX has given up."""
    from types import SimpleNamespace

    import jax.numpy as jnp
    from transformers.models.t5 import modeling_flax_t5

    clip = lambda x, a_min=None, a_max=None: jnp.clip(x, a_min, a_max)
    modeling_flax_t5.jnp = SimpleNamespace(**vars(jnp) | {"clip": clip})
    return _seq2seq("FlaxT5ForConditionalGeneration", "T5Config", **T5)


def _whisper() -> Built:
    def loss_fn(model, batch):
        ids = batch["ids"]
        positions = {"decoder_attention_mask": ids * 0 + 1, "decoder_position_ids": _positions(ids)}
        return next_token(model(batch["sound"], decoder_input_ids=ids, **positions).logits, ids)

    sizes = BART | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
    module = _module("FlaxWhisperForConditionalGeneration", "WhisperConfig", **sizes, pad_token_id=0)
    return Built(module, loss_fn, {"sound": floats(8, 32), "ids": tokens(10)})


def _images(kind: str, configuration: str, **sizes: Any) -> Built:
    """A classifier of images, `[rows, height, width, channels]`; statistics of batches are those of training."""

    def loss_fn(model, batch):
        return cross_entropy(model(batch["image"], deterministic=False).logits, batch["label"])

    module = _module(kind, configuration, **sizes, num_labels=10)
    return Built(module, loss_fn, {"image": floats(32, 32, 3), "label": labels()})


def _clip() -> Built:
    import jzero

    def loss_fn(model, batch):
        import jax.numpy as jnp

        ids = batch["ids"]
        found = model(ids, batch["image"], ids * 0 + 1, _positions(ids))
        text, image = (jzero.all_gather(x) for x in (found.text_embeds, found.image_embeds))
        logits = jnp.exp(model.logit_scale) * text @ image.T
        pairs = jnp.arange(len(logits))
        return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2

    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {
        "text_config": part | {"vocab_size": 96, "max_position_embeddings": 16, "eos_token_id": 95},
        "vision_config": part | {"image_size": 32, "patch_size": 8},
        "projection_dim": 16,
    }
    return Built(
        _module("FlaxCLIPModel", "CLIPConfig", **sizes), loss_fn, {"ids": tokens(12), "image": floats(32, 32, 3)}
    )


def _wav2vec2() -> Built:
    def loss_fn(model, batch):
        import jax.numpy as jnp
        import optax

        logits = model(batch["sound"], jnp.ones(batch["sound"].shape, jnp.int32))[0]
        none = logits[..., 0] * 0
        return optax.ctc_loss(logits, none, batch["ids"], batch["ids"] * 0.0).mean()

    conv = {"conv_dim": (16, 16), "conv_stride": (4, 2), "conv_kernel": (8, 3), "num_conv_pos_embeddings": 4}
    sizes = SMALL | STILL | conv | {"intermediate_size": 64, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0}
    sizes |= {
        "do_stable_layer_norm": True,
        "feat_extract_norm": "layer",
        "feat_proj_dropout": 0.0,
        "final_dropout": 0.0,
    }
    module = _module("FlaxWav2Vec2ForCTC", "Wav2Vec2Config", **sizes)
    return Built(module, loss_fn, {"sound": floats(320), "ids": tokens(5)})


LLAMA = SMALL | WIDE | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT_NEO = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 4}
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
VIT |= STILL | {"intermediate_size": 64}
XGLM = {"vocab_size": 96, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4}
XGLM |= {"max_position_embeddings": 64}
BERT = SMALL | WIDE | STILL
FOR_PAIRS = " Its loss compares every text with every image, so it takes other devices' rows by `jzero.all_gather`."
OLD_CLIP = " Its call of `jnp.clip(a_max=...)`, which JAX has no longer, is replaced."


def _row(name: str, build: Callable[..., Built], *names: str, more: str = "", **sizes: Any) -> ThirdParty:
    return ThirdParty(name, "transformers", lambda: build(*names, **sizes), MODULE + more)


MODELS = [
    _row("bert", _masked, "FlaxBertForMaskedLM", "BertConfig", **BERT),
    _row("roberta", _masked, "FlaxRobertaForMaskedLM", "RobertaConfig", **BERT),
    _row("electra", _masked, "FlaxElectraForMaskedLM", "ElectraConfig", **BERT, embedding_size=16),
    _row("albert", _masked, "FlaxAlbertForMaskedLM", "AlbertConfig", **BERT, embedding_size=16),
    _row("distilbert", _distilbert),
    _row("big-bird", _big_bird),
    _row("gpt2", _causal, "FlaxGPT2LMHeadModel", "GPT2Config", **GPT2),
    _row("gptj", _causal, "FlaxGPTJForCausalLM", "GPTJConfig", **GPT2, rotary_dim=4),
    _row("gpt-neo", _causal, "FlaxGPTNeoForCausalLM", "GPTNeoConfig", **GPT_NEO),
    _row("opt", _causal, "FlaxOPTForCausalLM", "OPTConfig", **SMALL, **WIDE, ffn_dim=64, word_embed_proj_dim=32),
    _row("llama", _causal, "FlaxLlamaForCausalLM", "LlamaConfig", **LLAMA),
    _row("mistral", _causal, "FlaxMistralForCausalLM", "MistralConfig", **LLAMA, sliding_window=8),
    _row("gemma", _causal, "FlaxGemmaForCausalLM", "GemmaConfig", **LLAMA, head_dim=8),
    _row("xglm", _causal, "FlaxXGLMForCausalLM", "XGLMConfig", **XGLM),
    _row("bloom", _bloom),
    _row("t5", _t5, more=OLD_CLIP),
    _row("bart", _seq2seq, "FlaxBartForConditionalGeneration", "BartConfig", **BART),
    _row("marian", _seq2seq, "FlaxMarianMTModel", "MarianConfig", **BART, pad_token_id=1, decoder_start_token_id=1),
    _row("whisper", _whisper),
    _row("wav2vec2", _wav2vec2),
    _row("vit", _images, "FlaxViTForImageClassification", "ViTConfig", **VIT),
    _row("beit", _images, "FlaxBeitForImageClassification", "BeitConfig", **VIT, drop_path_rate=0.0),
    _row("dinov2", _images, "FlaxDinov2ForImageClassification", "Dinov2Config", **VIT, mlp_ratio=2),
    _row("regnet", _images, "FlaxRegNetForImageClassification", "RegNetConfig", **RESNET, groups_width=8),
    _row("resnet", _images, "FlaxResNetForImageClassification", "ResNetConfig", **RESNET),
    _row("clip", _clip, more=FOR_PAIRS),
]
