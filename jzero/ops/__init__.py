"""What models and users call: losses that never hold all logits at once."""

from jzero.ops.chunked_loss import cross_entropy

__all__ = ["cross_entropy"]
