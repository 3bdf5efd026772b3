"""The GPUs that a plan is for: how much memory a program may take, and which bytes leave a node."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jzero.errors import ConfigError
from jzero.plan.hardware.figures import GpuFigures, gpu_figures
from jzero.plan.hardware.links import GroupTraffic, LinkTraffic, Sent, divided
from jzero.plan.hardware.network import read_network
from jzero.sharding.mesh import DATA_AXES

USABLE = 0.92
"""The share of a GPU's memory that a program can have; CUDA, NCCL and fragmentation take the rest."""


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind, in equal nodes.

    Attributes:
        gpu: one of `jzero.plan.GPUS`, or the path of a file like theirs, see `jzero.plan.gpu_figures`.
        n_gpus: GPUs in all.
        gpus_per_node: GPUs that share a host; a cluster smaller than that is one node.
        network: what joins the nodes, see `jzero.plan.hardware.network`; by default what such GPUs come with.
        host_memory: bytes of each node that offloading may take; None if that is not known, and then limits nothing.

    Raises:
        ConfigError: an unknown GPU or network, or nodes that would not be full.

    Example:
        >>> cluster = Cluster("h100-80g", 64)
        >>> cluster.n_nodes, cluster.usable / 1e9, cluster.network
        (8, 78.147540746, '400gb-ib')
    """

    gpu: str
    n_gpus: int
    gpus_per_node: int = 8
    network: str = ""
    host_memory: int | None = None

    def __post_init__(self):
        name = self.network or gpu_figures(self.gpu).network.name
        object.__setattr__(self, "gpus_per_node", full_nodes(self.n_gpus, self.gpus_per_node))
        object.__setattr__(self, "network", read_network(name).name)

    @property
    def figures(self) -> GpuFigures:
        """The GPU, with this cluster's network."""
        return replace(gpu_figures(self.gpu), network=read_network(self.network), gpus_per_node=self.gpus_per_node)

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return self.n_gpus // self.gpus_per_node

    @property
    def memory(self) -> int:
        """Bytes of one GPU."""
        return self.figures.memory

    @property
    def usable(self) -> int:
        """Bytes of one GPU that a program can have."""
        return int(USABLE * self.memory)

    def wire(self, sent: Iterable[Sent], mesh_shape: Mapping[str, int]) -> LinkTraffic:
        """Divides what the closed form says is sent.

        Args:
            sent: from a `ClosedForm`.
            mesh_shape: sizes of the mesh's axes; neighbours lie along `shard`, and node by node.
        """
        return divided(GroupTraffic(s.kind, s.n_bytes, *self.group(s.axes, mesh_shape)) for s in sent)

    def group(self, axes: tuple[str, ...], mesh_shape: Mapping[str, int]) -> tuple[int, int]:
        """Members of the groups along some axes of a mesh, and how many of the first group's share a node."""
        grid = np.arange(self.n_gpus).reshape([mesh_shape[a] for a in DATA_AXES])
        first = grid[tuple(slice(None) if a in axes else 0 for a in DATA_AXES)].ravel()
        return first.size, max(Counter((first // self.gpus_per_node).tolist()).values())


def full_nodes(n_gpus: int, gpus_per_node: int) -> int:
    """The GPUs of each node of a cluster, which is one node where it is smaller than that.

    Args:
        n_gpus: GPUs in all.
        gpus_per_node: GPUs that share a host.

    Raises:
        ConfigError: nodes that would not be full.
    """
    if n_gpus < 1 or gpus_per_node < 1:
        raise ConfigError(f"n_gpus={n_gpus} and gpus_per_node={gpus_per_node} must both be at least 1.")
    gpus_per_node = min(n_gpus, gpus_per_node)
    if n_gpus % gpus_per_node:
        raise ConfigError(f"n_gpus={n_gpus} does not fill nodes of {gpus_per_node} GPUs; use a multiple of it.")
    return gpus_per_node
