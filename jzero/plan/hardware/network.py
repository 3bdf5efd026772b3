"""Networks between nodes, by what people call them: `400gb-ib`, `100gb-roce`, `25gb-eth`, `3200gb-efa/node`."""

import re
from dataclasses import dataclass

from jzero.errors import ConfigError

# Whether a rate is quoted for each GPU's card or for the node, and seconds per hop. Latencies: what NCCL itself reckons
# with over InfiniBand (4 us, its LL128 protocol); RoCE switches add a little; EFA and TCP pass the host's software.
_KINDS = {"ib": ("gpu", 4e-6), "roce": ("node", 5e-6), "efa": ("node", 15e-6), "eth": ("node", 30e-6)}
_NAME = re.compile(rf"(\d+(?:\.\d+)?)gb(?:-({'|'.join(_KINDS)}))?(?:/(gpu|node))?")

EXAMPLES = "400gb-ib, 200gb-ib, 100gb-roce, 3200gb-efa, 25gb-eth or 100gb"
"""For help texts and errors."""


@dataclass(frozen=True)
class Network:
    """What joins the nodes of a cluster.

    Attributes:
        name: as given.
        bandwidth: bytes per second in one direction, for each GPU or for each node.
        per_node: whether the GPUs of a node share it.
        latency: seconds that the first byte takes from node to node.
    """

    name: str
    bandwidth: float
    per_node: bool
    latency: float

    def per_gpu(self, gpus_per_node: int) -> float:
        """Bytes per second for each GPU, when all of a node send at once."""
        return self.bandwidth / gpus_per_node if self.per_node else self.bandwidth


def read_network(name: str) -> Network:
    """Reads the name of a network: gigabits per second, perhaps its kind, and perhaps whose rate that is.

    Args:
        name: such as "400gb-ib". InfiniBand ("ib") counts per GPU, as an NVIDIA DGX has a card for each; "roce", "efa",
            "eth" (TCP) and a mere number, which is taken for RoCE, count per node, as clouds sell them. A last "/gpu"
            or "/node" says otherwise.

    Returns:
        The network.

    Raises:
        ConfigError: for anything else.

    Example:
        >>> [read_network(name).per_gpu(8) for name in ("400gb-ib", "100gb-roce", "100gb/gpu")]
        [50000000000.0, 1562500000.0, 12500000000.0]
    """
    found = _NAME.fullmatch(name.strip().lower())
    if found is None or not float(found[1]):
        raise ConfigError(
            f"No network is named {name!r}: give gigabits per second, and perhaps the kind ({', '.join(_KINDS)}) and "
            f"/gpu or /node, such as {EXAMPLES}."
        )
    shared, latency = _KINDS[found[2] or "roce"]
    return Network(found[0], float(found[1]) * 1e9 / 8, (found[3] or shared) == "node", latency)
