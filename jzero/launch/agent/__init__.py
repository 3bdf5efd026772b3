"""The agent, one a node: it starts the processes of its node, hands their output on, and ends them.

A launcher starts it by whatever reaches the node (nothing, `ssh`, `srun`) as `python -m jzero.launch.agent`, gives it
orders on its standard input, and hears of it on its standard output. When the input ends, the launcher or the
connection is gone: the agent kills its processes and ends. It needs no JAX.
"""
