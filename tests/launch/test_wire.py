"""What launcher and agent say to each other arrives whole, and nobody waits for a console."""

import os

from jzero.launch import wire
from jzero.launch.wire import Lines, Outbox, packed, unpacked


def test_lines_are_cut_where_they_end_and_where_they_are_too_long():
    lines = Lines(longest=4)
    assert list(lines.add(b"ab\ncd")) == [b"ab"]
    assert list(lines.add(b"e\n\nfghijk")) == [b"cde", b"", b"fghi"]
    assert list(lines.rest()) == [b"jk"]
    assert list(lines.rest()) == []


def test_what_is_no_message_is_none():
    assert [unpacked(line) for line in (b"Welcome", b"\x1e{", b"\x1e[]", packed({"a": 1})[:-1])] == [None] * 3 + [
        {"a": 1}
    ]


def test_a_message_is_found_behind_a_banner_without_an_end():
    assert unpacked(b"Last login: " + packed({"a": 1})[:-1]) == {"a": 1}


def test_output_that_nobody_reads_is_dropped_and_counted_and_events_are_not(monkeypatch):
    monkeypatch.setattr(wire, "_MOST_WAITING", 10_000)
    reads, writes = os.pipe()
    outbox = Outbox(writes)
    for _ in range(100):
        outbox.put({"event": "line", "text": "x" * 1000})
    outbox.put({"event": "exit", "rank": 3})
    lines, messages = Lines(), []
    while not outbox.flush() or not messages:
        messages += [unpacked(line) for line in lines.add(os.read(reads, 1 << 20))]
    outbox.put({"event": "alive"})
    messages += [unpacked(line) for line in lines.add(os.read(reads, 1 << 20))]
    shown = sum(message["event"] == "line" for message in messages)
    assert 20 < shown < 100
    assert [message for message in messages if message["event"] != "line"] == [
        {"event": "say", "text": f"{100 - shown} lines are not shown here; they are in the logs."},
        {"event": "exit", "rank": 3},
        {"event": "alive"},
    ]
    os.close(reads)
    os.close(writes)
