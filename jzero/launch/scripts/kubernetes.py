"""Manifests for Kubernetes: a JobSet, and Kubeflow Trainer's TrainJob."""

from collections.abc import Mapping

import yaml

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.launch.scripts.facts import GRACE_SECONDS, PORT, Facts
from jzero.launch.statuses import MISTAKE

_NODE = "node"


def jobset(facts: Facts) -> str:
    """A JobSet: a pod a node, all of them started again together when one fails.

    Args:
        facts: of the job.

    Raises:
        ConfigError: no image is named.

    Example:
        >>> print(jobset(Facts(("jzero", "train", "run.json"), nodes=2, image="me/jzero:1")).splitlines()[2])
        kind: JobSet
    """
    first, port = f"{facts.name}-{_NODE}-0-0.{facts.name}", facts.port or PORT
    env = (
        {"JAX_NUM_PROCESSES": str(facts.nodes), "JAX_COORDINATOR_ADDRESS": f"{first}:{port}"} if facts.nodes > 1 else {}
    )
    job = {
        "completionMode": "Indexed",
        "completions": facts.nodes,
        "parallelism": facts.nodes,
        "backoffLimit": 0,
        # A mistake is not tried again; all other failures are the JobSet's to count.
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [MISTAKE]}}]},
        "template": {"spec": _pod(facts, "jzero", {**facts.variables, **env}, port)},
    }
    rule = {"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return _text(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": facts.name},
            "spec": {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "failurePolicy": {"maxRestarts": facts.max_restarts, "rules": [rule]},
                "replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {"spec": job}}],
            },
        },
    )


def trainjob(facts: Facts) -> str:
    """A TrainJob with a runtime of its own, as Kubeflow's jax-distributed has neither /dev/shm nor a long grace.

    Args:
        facts: of the job.

    Raises:
        ConfigError: no image is named.

    Example:
        >>> text = trainjob(Facts(("jzero", "train", "run.json"), nodes=2, image="me/jzero:1"))
        >>> [line for line in text.splitlines() if line.startswith("kind")]
        ['kind: TrainingRuntime', 'kind: TrainJob']
    """
    pod = _pod(facts, _NODE, facts.variables, None)
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": pod}, "backoffLimit": 0},
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": facts.name, "labels": {"trainer.kubeflow.org/framework": "jax"}},
        "spec": {
            "mlPolicy": {"numNodes": facts.nodes, "jax": {}},
            "template": {
                "spec": {
                    "failurePolicy": {"maxRestarts": facts.max_restarts},
                    "replicatedJobs": [{"name": _NODE, "template": template}],
                }
            },
        },
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": facts.name},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": facts.name,
            },
            "trainer": {"numNodes": facts.nodes},
        },
    }
    return _text(runtime, job)


def _pod(facts: Facts, name: str, variables: Mapping[str, str], port: int | None) -> dict[str, Json]:
    if not facts.image:
        raise ConfigError("--image is needed: the container image that has jzero, your run file and its text.")
    container: dict[str, Json] = {
        "name": name,
        "image": facts.image,
        "command": [_literal(word) for word in facts.resumed],
        "env": [{"name": key, "value": _literal(value)} for key, value in {"NCCL_DEBUG": "WARN", **variables}.items()],
        "resources": {"limits": {"nvidia.com/gpu": facts.gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if facts.folder:
        container["workingDir"] = facts.folder
    if port is not None:
        container["ports"] = [{"containerPort": port}]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces nothing."""
    return text.replace("$(", "$$(")


def _text(*documents: Json) -> str:
    head = "# All pods must mount the volume that output_dir lies on: add it to volumes and volumeMounts.\n"
    return head + yaml.safe_dump_all(documents, sort_keys=False, width=110)
