"""Processes of one run must run the same: they compare what decides that before their first collective.

A collective that not all processes enter, or enter with other shapes, waits for ever or ends them all without the
cause. So what they were started with is compared through the service that connects them, which needs no devices.
"""

import importlib.metadata
import itertools
import json
import platform
from collections.abc import Mapping, Sequence

import jax

from jzero.base.types import Json
from jzero.base.version import VERSION
from jzero.errors import ConfigError
from jzero.jaxpr.coordination import peers, publish, wait_for

WAIT_SECONDS = 1800.0
"""How long a process waits for the others: reading a large text may take one of them much longer than another."""

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_JAX_OPTIONS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
_N_LISTED = 5
_LONGEST = 80

_round = itertools.count()


def agree(facts: Mapping[str, Json]) -> None:
    """Refuses processes for which a fact differs, on all of them alike; every process must call it.

    Args:
        facts: by name, anything JSON can hold; what lies in objects is compared and named one by one.

    Raises:
        ConfigError: the processes differ, or one of them has failed; it names the fact, its values and the odd ones.

    Example:
        >>> agree({"seed": 7})  # a process that is alone agrees with itself
    """
    if (own := peers()) is None:
        return
    number = next(_round)
    publish(_key(number, own.own), json.dumps(flat(facts)))
    if own.own == 0:
        verdict = _judge(number, own.count)
        publish(_key(number, "verdict"), verdict)
    else:
        verdict = wait_for(_key(number, "verdict"), 2 * WAIT_SECONDS)
        verdict = "Process 0 has not answered the others; see what it says." if verdict is None else verdict
    if verdict:
        raise ConfigError(verdict)


def tell_failure(sentence: str) -> None:
    """Lets the others, should they wait for this process in `agree`, end with what has gone wrong here."""
    if (own := peers()) is None:
        return
    number = next(_round)
    publish(_key(number, own.own), json.dumps({_FAILED: sentence}))
    if own.own == 0:
        publish(_key(number, "verdict"), _failed(0, sentence))


def facts_of_process(*, devices: bool = True) -> dict[str, Json]:
    """What decides how programs run in this process: versions, options of JAX and, if wanted, devices."""
    facts: dict[str, Json] = {"jzero": VERSION, "Python": ".".join(platform.python_version_tuple()[:2])}
    facts |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    if (own := peers()) is not None:
        facts["the number of processes"] = own.count
    facts |= {name: str(getattr(jax.config, name)) for name in _JAX_OPTIONS}
    if devices:
        kinds = sorted(device.device_kind for device in jax.local_devices())
        facts["the number of local devices"] = len(kinds)
        facts["the kind of local devices"] = ", ".join(dict.fromkeys(kinds))
    return facts


def flat(facts: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """What lies in nested objects, by dotted name.

    Example:
        >>> flat({"a": {"b": 1, "c": {}}, "d": [1]})
        {'a.b': 1, 'd': [1]}
    """
    found: dict[str, Json] = {}
    for name, value in facts.items():
        inside = f"{prefix}{name}{' ' if name.endswith(' of') else '.'}"
        found |= flat(value, inside) if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def disagreement(facts: Sequence[Mapping[str, Json]]) -> str | None:
    """What differs between processes, in one sentence; None if nothing does.

    Args:
        facts: those of each process.

    Returns:
        Each fact with the values of the odd ones, which are fewer than the others, or come after them.

    Example:
        >>> disagreement([{"seed": 1, "save_steps": 9}, {"seed": 1, "save_steps": 5}, {"seed": 1, "save_steps": 9}])
        'The processes were started differently: save_steps is 5 on process 1 and 9 on processes 0 and 2. ...'
    """
    differing = []
    for name in dict.fromkeys(name for each in facts for name in each):
        groups: dict[str, list[int]] = {}
        for process, each in enumerate(facts):
            groups.setdefault(_text(each.get(name)), []).append(process)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda item: (len(item[1]), -item[1][0]))
            texts = [f"{_short(value)} on {_processes(which)}" for value, which in ordered]
            differing.append(f"{name} is {_listed(texts)}")
    if not differing:
        return None
    more = f"; {len(differing) - _N_LISTED} more differ" if len(differing) > _N_LISTED else ""
    return (
        f"The processes were started differently: {'; '.join(differing[:_N_LISTED])}{more}. "
        "Start all of them with the same command, files and versions."
    )


_FAILED = "this process has failed"


def _judge(number: int, count: int) -> str:
    """What process 0 finds, once all have said their facts; nothing if they agree."""
    facts = []
    for process in range(count):
        text = wait_for(_key(number, process), WAIT_SECONDS)
        if text is None:
            return f"Process {process} has not come as far as the others within {WAIT_SECONDS:.0f} s; see what it says."
        facts.append(json.loads(text))
        if _FAILED in facts[-1]:
            return _failed(process, facts[-1][_FAILED])
    return disagreement(facts) or ""


def _failed(process: int, sentence: str) -> str:
    return (
        f"Process {process} has failed: {sentence}" if sentence else f"Process {process} has failed; see what it says."
    )


def _key(number: int, who: int | str) -> str:
    return f"jzero/agreement/{number}/{who}"


def _text(value: Json) -> str:
    return "not given" if value is None else json.dumps(value)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."


def _processes(which: Sequence[int]) -> str:
    names = [str(process) for process in which]
    if len(names) > 8:
        return f"{len(names)} processes, {names[0]} the first of them"
    return f"process{'es' * (len(names) > 1)} {_listed(names)}"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]
