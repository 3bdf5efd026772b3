"""One process of many joins the others of its run."""

import os
from collections.abc import Mapping
from typing import TypedDict

import jax

from jzero.errors import ConfigError
from jzero.launch.agreement import agree, facts_of_process
from jzero.launch.environment import read_launch
from jzero.launch.failure import end_others_on_failure
from jzero.launch.local_devices import count_gpus, local_device_ids
from jzero.launch.meeting import JOIN_SECONDS, Arrival, meet


class _Connection(TypedDict):
    """What JAX is told beside the three numbers; with it, it detects nothing."""

    cluster_detection_method: str
    local_device_ids: list[int] | None


def initialize_from_environment(environment: Mapping[str, str] | None = None, *, timeout: float = JOIN_SECONDS) -> bool:
    """Connects this process with the others of its run, if a launcher started several; call it before any JAX.

    The processes of one machine divide the GPUs that they see, unless their launcher has bound each of them to some.
    If one process fails from here on, all of them end.

    Args:
        environment: the variables; `os.environ` by default.
        timeout: seconds to wait for all processes; those that are missing are named meanwhile.

    Returns:
        Whether there are several processes. If not, nothing has changed.

    Raises:
        ConfigError: some variables are missing or do not fit together, or the processes have other versions.
        LaunchError: not all processes have come.

    Example:
        >>> initialize_from_environment({"RANK": "0", "WORLD_SIZE": "1"})
        False
    """
    variables = os.environ if environment is None else environment
    launch = read_launch(variables)
    if launch is None:
        return False
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    own = Arrival.of_this_process(launch.rank, launch.n_processes, launch.start, visible)
    neighbours = meet(launch.coordinator, own, timeout)
    # JAX would hold SIGTERM back from here on; jzero's processes agree on it by themselves.
    jax.config.update("jax_enable_preemption_service", False)
    options: _Connection = {"cluster_detection_method": "deactivate", "local_device_ids": None}
    refused = None
    try:
        options["local_device_ids"] = local_device_ids(launch, variables, neighbours, count_gpus())
    except ConfigError as error:  # the others are told of it, once they are connected
        refused = error
    jax.distributed.initialize(launch.coordinator, launch.n_processes, launch.rank, **options)
    end_others_on_failure()
    if refused is not None:
        raise refused
    agree(facts_of_process(devices=False))
    return True
