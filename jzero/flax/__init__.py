"""Flax NNX, Linen and plain functions behind one interface of two functions; tied parameters; rematerialisation.

What a model expects around it, a mesh or an axis of `jax.pmap`'s, is looked after in `surroundings.py`.
"""
