"""What a launcher orders an agent to start."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jzero.base.types import Json


@dataclass(frozen=True)
class Process:
    """One process of the job.

    Attributes:
        rank: its number in the job.
        local_rank: its number on the node.
        gpus: the numbers of its GPUs among those that the agent sees; none for a process without.
    """

    rank: int
    local_rank: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Orders:
    """What the processes of one node are started with.

    Attributes:
        command: what each runs.
        folder: the working directory.
        variables: of the environment, beside the agent's own.
        processes: those of this node.
        n_processes: of the job.
        coordinator: "host:port" of the first process.
        attempt: how many times the job was started before, plus one.
        launch: a name for this launch of the job.
        logs: the folder for the output; empty for none.
        bind: whether to bind processes to the CPUs near their GPUs.
        node: the number of this node.
        n_nodes: how many there are.
        host: its name, as the launcher calls it.
    """

    command: tuple[str, ...]
    folder: str
    variables: Mapping[str, str]
    processes: tuple[Process, ...]
    n_processes: int
    coordinator: str
    attempt: int = 1
    launch: str = ""
    logs: str = "logs"
    bind: bool = True
    node: int = 0
    n_nodes: int = 1
    host: str = ""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Those of all processes."""
        return tuple(gpu for process in self.processes for gpu in process.gpus)

    def message(self) -> dict[str, Json]:
        """As it is sent."""
        return {"do": "start", "orders": asdict(self)}


def read_orders(message: Mapping[str, Json]) -> Orders:
    """What `Orders.message` made.

    Example:
        >>> orders = Orders(("true",), "/", {}, (Process(0, 0, (3,)),), 1, "node1:29500")
        >>> read_orders(orders.message()) == orders
        True
    """
    sent = dict(message["orders"])
    processes = [Process(each["rank"], each["local_rank"], tuple(each["gpus"])) for each in sent.pop("processes")]
    return Orders(tuple(sent.pop("command")), processes=tuple(processes), **sent)


def variables_of(
    orders: Orders, process: Process, visible: list[str] | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a process.

    It has jzero's own variables, and those that DeepSpeed and torchrun set, for scripts that read them. All processes
    of a node see the same GPUs, and each is told which are its own: NCCL then finds the fast links between them.

    Args:
        orders: of the node.
        process: which of them.
        visible: the names of the GPUs that the agent sees, where its environment has a list of them.
        environment: the agent's.
    """
    n_local = len(orders.processes)
    host, _, port = orders.coordinator.rpartition(":")
    own = {
        "JZERO_RANK": process.rank,
        "JZERO_NUM_PROCESSES": orders.n_processes,
        "JZERO_LOCAL_RANK": process.local_rank,
        "JZERO_LOCAL_SIZE": n_local,
        "JZERO_COORDINATOR": orders.coordinator,
        "JZERO_LAUNCH": orders.launch,
        "JZERO_ATTEMPT": orders.attempt,
        "JZERO_HOST": orders.host,
        "RANK": process.rank,
        "WORLD_SIZE": orders.n_processes,
        "LOCAL_RANK": process.local_rank,
        "LOCAL_SIZE": n_local,
        "LOCAL_WORLD_SIZE": n_local,
        "CROSS_RANK": orders.node,
        "CROSS_SIZE": orders.n_nodes,
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "PYTHONUNBUFFERED": 1,
    }
    found = {**environment, **orders.variables, **{name: str(value) for name, value in own.items()}}
    if orders.gpus:
        places = [orders.gpus.index(gpu) for gpu in process.gpus]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(visible[gpu] if visible else str(gpu) for gpu in orders.gpus)
        found["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, places))
        found.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return found
