"""Where in its text a resumed run goes on, and what differs from the run that was saved: pure, told by a few facts."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from jzero.base.types import Json
from jzero.errors import CheckpointError


class Facts(NamedTuple):
    """What decides the order of a run's text and its schedule; saved with every checkpoint.

    Attributes:
        rows: windows in a batch.
        seq_len: tokens that a window goes on by.
        seed: of the order of the windows.
        text: the fingerprint of the text, its division, packing and mixing.
        n_steps: of the whole run.
        windows: of an epoch; 0 if nobody knows.
    """

    rows: int
    seq_len: int
    seed: int
    text: str
    n_steps: int
    windows: int = 0


class Position(NamedTuple):
    """Where a run goes on.

    Attributes:
        next_batch: the index of the first batch to take, in batches of this run's size.
        sentences: what is not as it was, and what that means for the place in the text.
    """

    next_batch: int
    sentences: tuple[str, ...] = ()


def find_position(saved: Mapping[str, Json], now: Facts, step: int) -> Position:
    """Where a run goes on from what a checkpoint says.

    The place counts tokens. One that falls between two batches goes back to the earlier one.

    Args:
        saved: the checkpoint's own facts: `Facts`, and `next_batch`. What an older version did not save is taken to be
            as it is now.
        now: this run's.
        step: steps taken before.

    Raises:
        CheckpointError: a number among what was saved is none.

    Example:
        >>> now = Facts(rows=16, seq_len=8, seed=1, text="a", n_steps=20)
        >>> find_position({**now._asdict(), "rows": 8, "next_batch": 7}, now, 7).next_batch
        3
    """
    rows, seq_len = _whole(saved, "rows", now.rows), _whole(saved, "seq_len", now.seq_len)
    windows = _whole(saved, "next_batch", step, least=0) * rows
    next_batch, again = divmod(windows * seq_len, now.rows * now.seq_len)
    sentences = []
    if changes := _other_order(saved, now):
        sentences.append(
            f"{changes}: the text comes in another order, so the place in it cannot be kept. As much of it counts as "
            f"read as before ({windows * seq_len:,} tokens); of the present epoch, some is read again and some left "
            f"out.{_epochs(saved, now, windows, next_batch * now.rows)}"
        )
    if rows != now.rows and not changes:
        windows_again = f"; {again // now.seq_len} windows are read again" if again else ""
        sentences.append(
            f"The batch has {now.rows} windows and had {rows}: it goes on at the same place in the text (batch "
            f"{next_batch}{windows_again})."
        )
    return Position(next_batch, tuple(sentences))


def _other_order(saved: Mapping[str, Json], now: Facts) -> str:
    """What gives the text another order than it had."""
    names = {"seq_len": "data.seq_len", "seed": "training_arguments.seed"}
    values = now._asdict()
    changes = [
        f"{label} is {values[name]} and was {saved[name]}"
        for name, label in names.items()
        if name in saved and saved[name] != values[name]
    ]
    if "text" in saved and saved["text"] != now.text:
        changes.append(
            "the text, its division into training and validation text, or how it is packed or mixed is not as it was"
        )
    listed = ", and ".join(changes)
    return listed[:1].upper() + listed[1:] if listed.startswith("the ") else listed


def _epochs(saved: Mapping[str, Json], now: Facts, before: int, after: int) -> str:
    """What becomes of the epochs where there are more windows, as after adding files, or fewer."""
    windows = _whole(saved, "windows", now.windows, least=0)
    if not windows or not now.windows or windows == now.windows:
        return ""
    return (
        f" An epoch has {now.windows:,} windows and had {windows:,}: the run was in epoch {before // windows + 1} and "
        f"is in epoch {after // now.windows + 1}."
    )


def schedule_change(saved: Mapping[str, Json], now: Facts, rate: float | None) -> str | None:
    """What becomes of the learning rate, if the run's length or its schedule is another; None if they are as before.

    Args:
        saved: the checkpoint's own facts: `Facts`, and `learning_rate`, that of the step that was to come.
        now: this run's.
        rate: this run's learning rate at that step; None if nobody knows it.

    Example:
        >>> now = Facts(rows=8, seq_len=8, seed=1, text="a", n_steps=20)
        >>> schedule_change({"n_steps": 10, "learning_rate": 0.001}, now, 0.0015)
        'The run has 20 steps (training_arguments.max_steps) and had 10: the next step has the learning rate 0.0015, and
        was to have 0.001.'
    """
    n_steps, before = saved.get("n_steps", now.n_steps), saved.get("learning_rate")
    length = f"The run has {now.n_steps} steps (training_arguments.max_steps) and had {n_steps}"
    if rate is None or not isinstance(before, int | float):
        said = f"{length}; the learning rate of a schedule that depends on this changes with it."
        return None if n_steps == now.n_steps else said
    same = math.isclose(before, rate, rel_tol=1e-6, abs_tol=1e-12)
    if same and n_steps == now.n_steps:
        return None
    if same:
        return f"{length}: the next step has the learning rate {rate:g} as before, later ones may have others."
    what = "The schedule is another" if n_steps == now.n_steps else length
    return f"{what}: the next step has the learning rate {rate:g}, and was to have {before:g}."


def _whole(saved: Mapping[str, Json], name: str, default: int, *, least: int = 1) -> int:
    value = saved.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CheckpointError(
            f"The checkpoint's `extra` has {name} = {value!r}, which must be a whole number of at least {least}."
        )
    return value
