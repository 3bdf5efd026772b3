"""Flax NNX, Linen and plain functions behind one interface of two functions; tied parameters; rematerialisation."""
