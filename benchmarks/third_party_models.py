"""The third-party models that `third_party.py` tries, and the packages they come from."""

import third_party_flax
import third_party_others
import third_party_transformers
from third_party_case import Package, ThirdParty

PACKAGES: dict[str, Package] = {
    "transformers": Package("transformers==4.57.6"),
    "flax examples": Package("", beside=("jraph==0.0.6.dev0", "jaxtyping==0.3.11")),
    "recurrentgemma": Package(
        "recurrentgemma==1.0.1",
        beside=("einops==0.8.2", "jaxtyping==0.3.11", "sentencepiece==0.2.3", "typeguard==2.13.3"),
        why_no_deps="it wants numpy below 2.4",
    ),
    "tunix": Package(
        "google-tunix==0.1.7",
        beside=("jaxtyping==0.3.11",),
        why_no_deps="it wants safetensors below 0.8, and much for its trainers that its models do not need",
    ),
    "mamba2-jax": Package("mamba2-jax==1.1.2"),
    "mamba3-jax": Package("mamba3-jax==1.0.1"),
    "e3x": Package("e3x==1.0.2"),
    "flaxmodels": Package(
        "flaxmodels==0.1.3",
        beside=("h5py==3.16.0", "requests==2.34.2", "regex==2026.11.19", "tqdm==4.70.1", "filelock==4.3.1"),
        why_no_deps="it wants the backport of a module that Python has by now",
    ),
    "nano-moe-jax": Package("nano-moe-jax==0.1.0"),
    "penzai": Package("penzai==0.2.5"),
}
"""By the names that the models call them."""

_ALL = [*third_party_transformers.MODELS, *third_party_flax.MODELS, *third_party_others.MODELS]
MODELS: dict[str, ThirdParty] = {model.name: model for model in _ALL}
