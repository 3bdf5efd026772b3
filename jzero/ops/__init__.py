"""What models and users call: attention in O(T) memory.

Layout:
    attend.py: the entry, and which path runs.
    request.py: what may be asked.
    visibility.py: which keys a query sees.
    blocks.py: blocks with an online softmax, which run everywhere.
    all_scores.py: all scores at once.
    kernels.py: cuDNN's kernel and Pallas's.
"""

from jzero.ops.attend import attention, attention_with_lse

__all__ = ["attention", "attention_with_lse"]
