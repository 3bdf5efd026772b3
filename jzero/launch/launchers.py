"""What each launcher leaves in the environment of the processes that it starts, as one table.

A row names variables; `jzero.launch.environment` reads them. The first row whose rank and size are both there speaks,
so the order matters: what people set by hand comes before what a launcher sets, and a launcher that may run inside of
another one's step comes before that one. `mpirun` and `torchrun` inside of SLURM leave SLURM's variables as they were
for their own helpers.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jzero.launch import slurm

LOOPBACK = "127.0.0.1"

Variables = Mapping[str, str]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Launcher:
    """What one launcher says of a process. Of several names for one thing, the first that is there counts.

    Attributes:
        name: as people call it.
        rank: this process's number.
        size: how many processes there are.
        local_rank: its number among those of its machine.
        local_size: how many those are.
        needs: variables that tell this launcher from others with the same names; any of them is enough.
        job: what is the same for all processes of one start, and another one for the next.
        decides: whether a size of one settles that the process is alone, whatever other launchers say.
        port_name: where it leaves a port for the first process.
        host: where the first process is, as this launcher says it.
        n_local: how many processes are on this machine, where it takes more than reading one variable.
        advice: what to do where the first process's place is not known.
    """

    name: str
    rank: Names
    size: Names
    local_rank: Names = ()
    local_size: Names = ()
    needs: Names = ()
    job: Names = ()
    decides: bool = False
    port_name: Names = ()
    host: Callable[[Variables], str | None] = lambda _: None
    n_local: Callable[[Variables], int | None] = lambda _: None
    advice: str = "set MASTER_ADDR and MASTER_PORT to the host and a free port of the first process"

    def speaks(self, variables: Variables) -> bool:
        """Whether rank and size are both there, and the launcher is this one."""
        named = not self.needs or any(name in variables for name in self.needs)
        return named and None not in (first(variables, self.rank), first(variables, self.size))

    def port(self, variables: Variables) -> int:
        """A port that all processes of this start find alike, above those that systems give out by themselves."""
        return 61440 + zlib.crc32(self.start(variables).encode()) % 4096

    def start(self, variables: Variables) -> str:
        """What tells this start of the job from others."""
        return " ".join([self.name, *(f"{name}={variables[name]}" for name in self.job if name in variables)])


def first(variables: Variables, names: Names) -> str | None:
    """The first of these variables that is there, by name."""
    return next((name for name in names if variables.get(name, "") != ""), None)


def _host_of_open_mpi(variables: Variables) -> str | None:
    """Open MPI 4 says where `mpirun` runs, which is most often the first process's machine; Open MPI 5 does not."""
    found = re.search(r"tcp://([^:;]+):", variables.get("OMPI_MCA_orte_hnp_uri", ""))
    addresses = found[1].split(",") if found else []
    return next(
        (address for address in addresses if not address.startswith("127.")), slurm.first_host_of_job(variables)
    )


def _first_of_sky(variables: Variables) -> str | None:
    return next(iter(variables.get("SKYPILOT_NODE_IPS", "").split()), None)


_MPIRUN = "pass the first host by mpirun -x MASTER_ADDR=HOST, or by -genv MASTER_ADDR HOST where mpirun has that"

LAUNCHERS = (
    Launcher(
        "JZERO_RANK and JZERO_NUM_PROCESSES",
        rank=("JZERO_RANK",),
        size=("JZERO_NUM_PROCESSES",),
        local_rank=("JZERO_LOCAL_RANK",),
        local_size=("JZERO_LOCAL_SIZE",),
        job=("JZERO_LAUNCH", "JZERO_ATTEMPT"),
        decides=True,
        advice="set JZERO_COORDINATOR to the first process's HOST:PORT",
    ),
    Launcher(
        "DeepSpeed or torchrun",
        rank=("RANK",),
        size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_size=("LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
        job=("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        decides=True,
        port_name=("MASTER_PORT",),
    ),
    Launcher(
        "JAX_NUM_PROCESSES",
        rank=("JAX_PROCESS_ID", "JAX_PROCESS_INDEX", "JOB_COMPLETION_INDEX"),
        size=("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"),
        decides=True,
        advice="set JAX_COORDINATOR_ADDRESS to the first process's HOST:PORT",
    ),
    Launcher(
        "NNODES and NODE_RANK",
        rank=("NODE_RANK", "JOB_COMPLETION_INDEX"),
        size=("NNODES",),
        decides=True,
        advice="set JAX_COORDINATOR_ADDRESS, or MASTER_ADDR and MASTER_PORT, to the first node's host and a free port",
    ),
    Launcher(
        "Kubeflow's torch runtime",
        rank=("PET_NODE_RANK",),
        size=("PET_NNODES",),
        port_name=("PET_MASTER_PORT",),
        host=lambda variables: variables.get("PET_MASTER_ADDR"),
    ),
    Launcher(
        "Open MPI",
        rank=("OMPI_COMM_WORLD_RANK",),
        size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        host=_host_of_open_mpi,
        advice=_MPIRUN,
    ),
    Launcher(
        "PALS",
        rank=("PALS_RANKID",),
        size=("PMI_SIZE",),
        local_rank=("PALS_LOCAL_RANKID",),
        local_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        job=("PALS_APID",),
        host=slurm.first_host_of_job,
        advice=_MPIRUN,
    ),
    Launcher(
        "MPICH or Intel MPI",
        rank=("PMI_RANK",),
        size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_size=("MPI_LOCALNRANKS",),
        needs=("MPI_LOCALRANKID",),
        job=("SLURM_JOB_ID", "PBS_JOBID"),
        host=slurm.first_host_of_job,
        advice=_MPIRUN,
    ),
    Launcher(
        "SLURM",
        rank=("SLURM_PROCID",),
        size=("SLURM_STEP_NUM_TASKS",),
        local_rank=("SLURM_LOCALID",),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        host=slurm.first_host,
        n_local=slurm.tasks_on_node,
    ),
    Launcher(
        "PMI",
        rank=("PMI_RANK",),
        size=("PMI_SIZE",),
        local_rank=("PMI_LOCAL_RANK",),
        local_size=("PMI_LOCAL_SIZE",),
        advice=_MPIRUN,
    ),
    Launcher(
        "SkyPilot",
        rank=("SKYPILOT_NODE_RANK",),
        size=("SKYPILOT_NUM_NODES",),
        job=("SKYPILOT_TASK_ID",),
        host=_first_of_sky,
    ),
)
"""The known ones, in the order in which they are asked."""

HALF_SAID = {
    "JOB_COMPLETION_INDEX": "JAX_NUM_PROCESSES (of all pods) and JAX_COORDINATOR_ADDRESS, pod 0's HOST:PORT",
    "JZERO_RANK": "JZERO_NUM_PROCESSES and JZERO_COORDINATOR",
    "RANK": "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    "JAX_PROCESS_ID": "JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS",
    "JAX_PROCESS_INDEX": "JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS",
    "NODE_RANK": "NNODES and JAX_COORDINATOR_ADDRESS",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PALS_RANKID": "PMI_SIZE",
    "SKYPILOT_NODE_RANK": "SKYPILOT_NUM_NODES",
}
"""Ranks that come only with several processes, and what else such processes need, where nothing says how many."""
