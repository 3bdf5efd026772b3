"""Which hosts answer: the agents of an attempt are started, and those that come are its world."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from jzero.base.types import Json
from jzero.base.version import VERSION
from jzero.errors import ConfigError, LaunchError
from jzero.launch.hosts.reach import agent_command
from jzero.launch.job.layout import Node
from jzero.launch.job.link import Arrived, Link
from jzero.launch.job.plan import Job

LEAVE_SECONDS = 10.0
"""How long the agents may take to end, all together."""

RETRY_SECONDS = 5.0
"""How long after it did not answer a host is asked again."""


@dataclass
class Present:
    """A host that has answered.

    Attributes:
        link: to its agent.
        node: its slots and GPUs.
        hello: what its agent said.
    """

    link: Link
    node: Node
    hello: Mapping[str, Json]


class Gathering:
    """The hosts of an attempt, as they come.

    Args:
        job: what was asked for.
        arrivals: where the agents' words arrive.
        say: called with a sentence for people.
        environment: of the launcher.
        patient: whether a host that does not answer is asked again, as after a failure that it had a part in.
    """

    def __init__(
        self,
        job: Job,
        arrivals: "SimpleQueue[Arrived]",
        say: Callable[[str], None],
        environment: Mapping[str, str],
        *,
        patient: bool,
    ):
        self._job, self._arrivals, self._say = job, arrivals, say
        self._environment, self._patient = environment, patient
        self._links: dict[int, Link] = {}
        self._hellos: dict[int, Mapping[str, Json]] = {}
        self._why: dict[int, str] = {}
        self._again: dict[int, float] = {}
        self.signal = 0

    def gather(self) -> list[Present]:
        """Waits for the hosts; those that have answered, in order.

        Raises:
            ConfigError: a host has another version of jzero.
            LaunchError: too few have answered.
        """
        try:
            for number in range(len(self._job.hosts)):
                self._ask(number)
            self._wait()
            return self._world()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of all agents."""
        for link in self._links.values():
            link.close()
        deadline = time.monotonic() + LEAVE_SECONDS
        for link in self._links.values():
            link.wait(deadline)

    @property
    def _least(self) -> int:
        return min(self._job.min_nodes or len(self._job.hosts), len(self._job.hosts))

    def _ask(self, number: int) -> None:
        host = self._job.hosts[number].name
        command = agent_command(host, self._job.reach, self._job.folder, self._environment)
        try:
            self._links[number] = Link(number, host, command, self._arrivals)
        except OSError as error:
            raise LaunchError(f"{host} cannot be reached: cannot start {command[0]}: {error.strerror}.") from None

    def _wait(self) -> None:
        """Until all have answered, or enough have and the others will not."""
        deadline = time.monotonic() + self._job.wait
        while not self.signal and (now := time.monotonic()) < deadline:
            for number in [number for number, at in self._again.items() if at <= now]:
                del self._again[number]
                self._ask(number)
            all_known = len(self._hellos) + len(self._why) >= len(self._job.hosts)
            if all_known and (len(self._hellos) >= self._least or not self._patient):
                return
            try:
                self._hear(self._arrivals.get(timeout=min(1.0, deadline - now)))
            except Empty:
                continue

    def _hear(self, arrived: Arrived) -> None:
        number, message = arrived
        match message["event"]:
            case "hello":
                self._hellos[number] = message
                self._why.pop(number, None)
            case "gone":
                self._hellos.pop(number, None)
                self._why[number] = self._links[number].why_gone
                if self._patient:
                    self._again[number] = time.monotonic() + RETRY_SECONDS
            case "own signal":
                self.signal = message["number"]
            case "noise":
                self._say(f"{self._job.hosts[number].name}: {message['text']}")

    def _world(self) -> list[Present]:
        names = [host.name for host in self._job.hosts]
        for number, hello in self._hellos.items():
            if hello["version"] != VERSION:
                raise ConfigError(
                    f"{names[number]} has jzero {hello['version']}, and the launcher is {VERSION}; install the same on "
                    "all hosts."
                )
        missing = [number for number in range(len(names)) if number not in self._hellos]
        for number in missing:
            why = self._why.get(number, f"no answer within {self._job.wait:.0f} s")
            self._say(f"{names[number]} cannot be reached: {why}.")
        if len(self._hellos) < self._least and not self.signal:
            raise LaunchError(
                f"{len(self._hellos)} of {len(names)} hosts have answered, and {self._least} are needed; missing: "
                f"{', '.join(names[number] for number in missing[:8])}{', ...' * (len(missing) > 8)}."
            )
        return [
            Present(self._links[n], Node(self._job.hosts[n], self._hellos[n]["gpus"]), self._hellos[n])
            for n in sorted(self._hellos)
        ]
