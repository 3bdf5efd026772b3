"""Walks over a traced loss: finds the uses of parameters, makes units of them, and runs what they make."""
