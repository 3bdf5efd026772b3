"""A batch script for SLURM, and one with `mpirun`."""

import shlex

from jzero.errors import ConfigError
from jzero.launch.scripts.facts import GRACE_SECONDS, Facts


def slurm(facts: Facts) -> str:
    """A batch script: one task a GPU, saved before the time is up, queued again until it is done.

    Args:
        facts: of the job.

    Raises:
        ConfigError: the folder's name cannot stand in it.

    Example:
        >>> print(slurm(Facts(("jzero", "train", "run.json"), nodes=2)).splitlines()[2])
        #SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
    """
    folder = f"\n#SBATCH --chdir={_directive(facts.folder)}" if facts.folder else ""
    port = f"\nexport MASTER_PORT={facts.port}" if facts.port else ""
    exports = "".join(f"\nexport {name}={shlex.quote(value)}" for name, value in facts.variables.items())
    return f"""#!/bin/bash
#SBATCH --job-name={facts.name}
#SBATCH --nodes={facts.nodes} --ntasks-per-node={facts.gpus} --gpus-per-node={facts.gpus}
#SBATCH --output={facts.name}-%j.log --open-mode=append{folder}
# SIGTERM comes to the tasks, not to this script, {GRACE_SECONDS} s before the time is up: they save and end with 143.
#SBATCH --requeue --signal=TERM@{GRACE_SECONDS}
# Add what your site asks for: #SBATCH --time=, --partition=, --account=, --cpus-per-task=.

set -u{exports}{port}
export NCCL_DEBUG="${{NCCL_DEBUG:-WARN}}"

status=0
srun --label --kill-on-bad-exit=1 {shlex.join(facts.resumed)} || status=$?

# 143: preempted, and saved. 75: stuck, or a node did not come. 2: a mistake, for which another start does not help.
restarts="${{SLURM_RESTART_COUNT:-0}}"
case "$status" in
    0 | 2) again=no ;;
    143) again=yes ;;
    *) again=$([ "$restarts" -lt {facts.max_restarts} ] && echo yes || echo no) ;;
esac
if [ "$again" = yes ]; then
    echo "Ended with status $status after $restarts restarts: queued again."
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def mpirun(facts: Facts) -> str:
    """A script with Open MPI's `mpirun`, with what differs for MPICH and Intel MPI beside it.

    Args:
        facts: of the job.

    Example:
        >>> print(mpirun(Facts(("jzero", "train", "run.json"), gpus=2)).splitlines()[-1])
        exec mpirun -n 2 --bind-to none -x NCCL_DEBUG jzero train run.json --resume auto
    """
    count, exports = facts.nodes * facts.gpus, dict(facts.variables)
    where = ""
    if facts.hosts:
        where = f" --host {shlex.quote(','.join(f'{host}:{facts.gpus}' for host in facts.hosts))}"
    if facts.nodes > 1:
        exports["MASTER_ADDR"] = facts.hosts[0] if facts.hosts else "FIRST_HOST"
    if facts.nodes > 1 or facts.port:
        exports["MASTER_PORT"] = str(facts.port or 29500)
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    passed = "".join(f" -x {name}" for name in [*exports, "NCCL_DEBUG"])
    folder = f" --wdir {shlex.quote(facts.folder)}" if facts.folder else ""
    first = (
        "# Put the first host's name in the place of FIRST_HOST.\n"
        if exports.get("MASTER_ADDR") == "FIRST_HOST"
        else ""
    )
    return f"""#!/bin/bash
# Open MPI 4 and 5. MPICH and Intel MPI: -genvlist NAME,NAME in the place of each -x NAME, -hosts in that of --host, and
# no --bind-to and --wdir. It is not started again by itself: after 75 or 143 start it once more.
{first}set -eu
{lines}export NCCL_DEBUG="${{NCCL_DEBUG:-WARN}}"
exec mpirun -n {count}{where} --bind-to none{folder}{passed} {shlex.join(facts.resumed)}
"""


def _directive(text: str) -> str:
    """A value for a line of SLURM's, which takes double quotes but runs nothing.

    Raises:
        ConfigError: it has a line's end, after which the script would go on with the rest.
    """
    if not text.isprintable():
        raise ConfigError(f"The folder {text!r} cannot stand in a batch script; choose one without such characters.")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if set(text) & set(" \"'\\#") else text
