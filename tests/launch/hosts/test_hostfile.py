"""Hostfiles and filters mean what they mean to DeepSpeed, and what is wrong is one sentence with file and line."""

import pytest

from jzero.errors import ConfigError
from jzero.launch.hosts.hostfile import Host, parse_hostfile, read_hostfile
from jzero.launch.hosts.selection import Choice, chosen

FOUR = (0, 1, 2, 3)
TWO = [Host("w0", FOUR), Host("w1", FOUR)]


def test_comments_and_empty_lines_say_nothing():
    text = "\n# all\nw0   slots=2 # the first\n\n\tme@10.0.0.2 slots=1\n"
    assert parse_hostfile(text) == [Host("w0", (0, 1)), Host("me@10.0.0.2", (0,))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("w0 slots=2\nw1 slots 2", "hosts, line 2: 'w1 slots 2' must be NAME slots=N"),
        ("w0", "hosts, line 1: 'w0' must be NAME slots=N"),
        ("w0 slots=-1", "line 1: 'w0 slots=-1' must be"),
        ("w0 slots=0", "hosts, line 1: w0 has slots=0"),
        ("w0 slots=1\n\nw0 slots=1", "hosts, line 3: w0 is named already in line 1"),
        ("# nothing\n", "hosts: names no host"),
        ("-oProxyCommand=x slots=1", "hosts, line 1: '-oProxyCommand=x' cannot be a host"),
        ("w0;reboot slots=1", "hosts, line 1: 'w0;reboot' cannot be a host"),
        ("$(reboot) slots=1", "hosts, line 1: '$(reboot)' cannot be a host"),
    ],
)
def test_a_wrong_line_is_named(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text, "hosts")
    assert says in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the file: No such file"):
        read_hostfile(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        read_hostfile(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), {"w0": FOUR, "w1": FOUR}),
        (Choice(include="w1"), {"w1": FOUR}),
        (Choice(include="w0:1,1"), {"w0": (1,)}),
        (Choice(include="w0:1@w0:0,1"), {"w0": (0, 1)}),
        (Choice(include="w1:3,0@w0"), {"w0": FOUR, "w1": (0, 3)}),
        (Choice(exclude="w0:0,1@w1:3"), {"w0": (2, 3), "w1": (0, 1, 2)}),
        (Choice(exclude="w0"), {"w1": FOUR}),
        (Choice(exclude="w0:0,1,2,3"), {"w1": FOUR}),
        (Choice(num_nodes=1), {"w0": FOUR}),
        (Choice(num_gpus=3), {"w0": (0, 1, 2), "w1": (0, 1, 2)}),
    ],
)
def test_filters(choice, taken):
    assert chosen(TWO, choice) == [Host(name, slots) for name, slots in taken.items()]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(exclude="w1@w0:1@5"), "--exclude w1@w0:1@5: there is no host '5' among w0, w1."),
        (Choice(include="w2"), "--include w2: there is no host 'w2'"),
        (Choice(include="w0:4"), "--include w0:4: w0 has slots 0 to 3, not 4."),
        (Choice(include="w0:a"), "'w0:a' must be NAME or NAME:SLOT,SLOT"),
        (Choice(include="w0:"), "'w0:' must be NAME or NAME:SLOT,SLOT"),
        (Choice(include="w0", exclude="w1"), "--include and --exclude cannot be given together"),
        (Choice(include="w0", num_gpus=1), "cannot be given beside --num_nodes or --num_gpus"),
        (Choice(exclude="w0", num_nodes=1), "cannot be given beside --num_nodes or --num_gpus"),
        (Choice(exclude="w0@w1"), "--exclude w0@w1: nothing is left of w0, w1."),
        (Choice(num_nodes=3), "--num_nodes 3: there are 2 hosts, w0, w1."),
        (Choice(num_gpus=5), "--num_gpus 5: w0 has 4 slots."),
    ],
)
def test_a_wrong_filter_is_named(choice, says):
    with pytest.raises(ConfigError) as caught:
        chosen(TWO, choice)
    assert says in str(caught.value)


def test_a_host_of_unknown_slots_takes_those_that_are_named():
    here = [Host("localhost")]
    assert chosen(here, Choice(include="localhost:1,0")) == [Host("localhost", (0, 1))]
    assert chosen(here, Choice(num_gpus=2)) == [Host("localhost", (0, 1))]
    assert chosen(here, Choice()) == here
    with pytest.raises(ConfigError, match="how many slots localhost has is not known here"):
        chosen(here, Choice(exclude="localhost:0"))
