"""`jzero launch COMMAND...`: start a command as several processes, on one machine or many, and watch them."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer

from jzero.base.terminal import printable
from jzero.cli import launch_flags as flags
from jzero.cli.exits import EXIT_BAD_INPUT
from jzero.errors import ConfigError, JzeroError, LaunchError
from jzero.launch.environment import read_launch
from jzero.launch.hosts.hostfile import LOCAL, Host, read_hostfile
from jzero.launch.hosts.reach import Reach, Way
from jzero.launch.hosts.selection import Choice, chosen
from jzero.launch.hosts.variables import exported, files_of_variables
from jzero.launch.job.launching import Launching
from jzero.launch.job.plan import Job
from jzero.launch.slurm import hosts_of
from jzero.launch.statuses import RESTART_STATUS


def launch_command(
    command: flags.Command,
    hostfile: flags.Hostfile = None,
    include: flags.Include = "",
    exclude: flags.Exclude = "",
    num_nodes: flags.NumNodes = None,
    num_gpus: flags.NumGpus = None,
    procs_per_node: flags.ProcsPerNode = None,
    master_addr: flags.MasterAddr = None,
    master_port: flags.MasterPort = None,
    ssh_port: flags.SshPort = None,
    export: flags.Export = None,
    logs: flags.Logs = "logs",
    bind_cpus: flags.BindCpus = True,
    grace: flags.Grace = 10.0,
    max_restarts: flags.MaxRestarts = 0,
    min_nodes: flags.MinNodes = None,
    max_nodes: flags.MaxNodes = None,
    wait: flags.Wait = 120.0,
    print_: flags.Print = None,
    job_name: flags.JobName = "jzero",
    image: flags.Image = None,
) -> None:
    r"""Start a command as several processes, on one machine or many, and watch them.

    One process a GPU, or `--procs-per-node`, with all that `jzero.initialize_from_environment()` needs in its
    environment. Each one's output is shown with its number in front, and kept in a file. When one fails, the rest are
    ended within seconds, and the first failure is reported with its rank, host, GPU and last lines.

    Examples, ready to copy:

        # a run file on all GPUs of this machine
        jzero launch train configs/demo.json

        # four processes of two simulated devices, where there are no GPUs
        jzero launch --procs-per-node 4 train configs/demo.json --devices 2

        # your own script, on two of the GPUs
        jzero launch --include localhost:0,1 train.py --my-option 3

        # on the hosts of a file, by ssh; started again up to three times
        jzero launch --hostfile hosts --max-restarts 3 train run.json

        # on what hosts are there, two to four of them
        jzero launch --hostfile hosts --min-nodes 2 --max-nodes 4 --max-restarts 3 train run.json

        # within a SLURM allocation, on all of its nodes
        salloc --nodes 2 --gpus-per-node 8 jzero launch train run.json

        # a batch script that saves before its time is up and is queued again; likewise jobset, trainjob, mpirun
        jzero launch --print slurm --num-nodes 2 --num-gpus 8 train run.json > run.sbatch

    The exit status is 0, or that of the first process that has failed; 75 where hosts have not answered or a process
    was stuck, 2 where something is written wrongly, 128 plus its number after a signal.
    """
    with _errors_exit():
        choice = Choice(include, exclude, num_nodes, num_gpus)
        if print_ is not None:
            from jzero.cli.launch_print import printed  # which reads and writes YAML

            facts = {"name": job_name, "image": image, "max_restarts": max_restarts or None, "port": master_port}
            text = printed(print_, command, hostfile, choice, os.environ, export=export or (), **facts)
            typer.echo(text, nl=False)
            raise typer.Exit
        refuse_inner_launch(os.environ)
        place = place_of_job(hostfile, os.environ)
        job = Job(
            command=as_started(command),
            hosts=tuple(chosen(place.hosts, choice)),
            reach=Reach(place.way, ssh_port),
            folder=os.getcwd(),
            variables=exported(os.environ, export or (), files_of_variables(os.environ, Path.home(), Path.cwd())),
            procs_per_node=procs_per_node,
            logs=logs,
            master_addr=master_addr,
            master_port=master_port,
            grace=grace,
            bind=bind_cpus,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            wait=wait,
        )
        check_nodes(job)
        status = Launching(job, max_restarts).run()
    raise typer.Exit(status)


class Place(NamedTuple):
    """Where a job may run.

    Attributes:
        hosts: all of them.
        way: how those are reached.
    """

    hosts: Sequence[Host]
    way: Way


def place_of_job(hostfile: Path | None, environment: Mapping[str, str]) -> Place:
    """Where a job runs: on the hosts of a file, of a SLURM allocation, or here.

    Args:
        hostfile: the file, if one is given.
        environment: of the launcher.

    Raises:
        ConfigError: the file is wrong, or `srun` is not there.

    Example:
        >>> place_of_job(None, {})
        Place(hosts=[Host(name='localhost', slots=None)], way='ssh')
    """
    if hostfile is not None:
        return Place(read_hostfile(hostfile), "ssh")
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    if not nodes or "SLURM_JOB_ID" not in environment:
        return Place([Host(LOCAL)], "ssh")
    if shutil.which("srun") is None:
        raise ConfigError(
            f"The environment is that of SLURM's job {environment['SLURM_JOB_ID']}, but there is no srun here; give "
            "the hosts by --hostfile, or leave the allocation by unsetting SLURM_JOB_ID."
        )
    return Place([Host(name) for name in hosts_of(nodes)], "srun")


def as_started(command: Sequence[str]) -> tuple[str, ...]:
    """The command that each process runs: `train` is jzero's own, and Python runs what ends in .py.

    Example:
        >>> as_started(["train", "run.json"])[1:], as_started(["mine.py"])[1:], as_started(["./mine"])
        (('-m', 'jzero', 'train', 'run.json'), ('mine.py',), ('./mine',))
    """
    if command[0] == "train":
        return (sys.executable, "-m", "jzero", *command)
    if command[0].endswith(".py"):
        return (sys.executable, *command)
    return tuple(command)


def refuse_inner_launch(environment: Mapping[str, str]) -> None:
    """A launcher that is one of several would start everything several times.

    Raises:
        ConfigError: another launcher has started this one as one of several processes.
    """
    outer = read_launch(environment)
    if outer is not None:
        raise ConfigError(
            f"jzero launch was started as process {outer.rank} of {outer.n_processes} by {outer.launcher}, and starts "
            "all processes itself: run it once, or run the command under that launcher without it."
        )


def check_nodes(job: Job) -> None:
    """Refuses numbers of nodes that contradict each other or the hosts.

    Raises:
        ConfigError: they do.
    """
    if job.min_nodes and job.min_nodes > min(job.max_nodes or len(job.hosts), len(job.hosts)):
        limit = f"--max-nodes {job.max_nodes}" if job.max_nodes else "all"
        raise ConfigError(f"--min-nodes {job.min_nodes} is more than {limit} of the {len(job.hosts)} hosts.")


@contextmanager
def _errors_exit():
    try:
        yield
    except JzeroError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(RESTART_STATUS if isinstance(error, LaunchError) else EXIT_BAD_INPUT) from None
