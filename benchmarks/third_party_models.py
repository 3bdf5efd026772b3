"""The table of third-party models that `third_party.py` tries, and the packages they come from."""

import third_party_flax
import third_party_others
import third_party_transformers
from third_party_case import ThirdParty

_ALL = [*third_party_transformers.MODELS, *third_party_flax.MODELS, *third_party_others.MODELS]
MODELS: dict[str, ThirdParty] = {model.name: model for model in _ALL}
