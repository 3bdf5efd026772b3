"""What models and users call: attention and the loss over a vocabulary, in O(T) memory.

Layout:
    attend.py: the entry to attention, and which path runs.
    request.py: what may be asked of it.
    visibility.py: which keys a query sees.
    blocks.py: blocks with an online softmax, which run everywhere.
    all_scores.py: all scores at once.
    kernels.py: cuDNN's kernel and Pallas's.
    chunked_loss.py: cross entropy from hidden states, a chunk of logits at a time.
    loss_checks.py: what may be asked of it.
"""

from jzero.ops.attend import attention, attention_with_lse
from jzero.ops.chunked_loss import cross_entropy

__all__ = ["attention", "attention_with_lse", "cross_entropy"]
