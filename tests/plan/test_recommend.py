"""Which setting is recommended, and what is said where none fits: on rows made up for the purpose."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jzero.plan.cluster import Cluster, Wire
from jzero.plan.recommend import cheapest, recommend
from jzero.plan.row import PARTS, Compiled, Row
from jzero.plan.setting import Setting, candidates

CLUSTER = Cluster("h100-80g", 16)
BASE = Setting(0, "nothing", 4, 1)
GB = 10**9


def row(setting: Setting, peak: float, *, divided: float = 0, **parts: float) -> Row:
    """A row whose peak is `peak` GB, what `parts` leaves of it being `rest`."""
    known = {name: round(parts.get(name, 0) * GB) for name in PARTS}
    known["rest"] = round(peak * GB) - sum(known.values())
    wire = Wire({}, {})
    return Row(setting, CLUSTER, 1, known, round(divided * GB), 0, 0, 0, wire, {}, setting.offload != "nothing")


def order(stages=(0, 1, 2, 3), *, smaller=True, remat=True):
    return list(candidates(BASE, stages, smaller=smaller, remat=remat))


def unconfirmed(row: Row) -> Row:
    return row


def test_the_order_of_what_is_tried():
    assert [(s.stage, s.offload) for s in order()[:8]] == [
        (0, "nothing"),
        (1, "nothing"),
        (2, "nothing"),
        (3, "nothing"),
        (1, "optimizer"),
        (2, "optimizer"),
        (3, "optimizer"),
        (3, "optimizer and parameters"),
    ]
    batches = [(s.micro_batch, s.accumulation, s.remat) for s in order()[::8]]
    assert batches == [(m, 4 // m, remat) for remat in (False, True) for m in (4, 2, 1)]
    assert len(order(smaller=False, remat=False)) == 8


@given(micro=st.integers(1, 60), accumulation=st.integers(1, 9))
def test_a_smaller_micro_batch_leaves_the_batch_as_it_is(micro, accumulation):
    base = Setting(0, "nothing", micro, accumulation)
    tried = list(candidates(base, [0], smaller=True, remat=False))
    assert {s.micro_batch * s.accumulation for s in tried} == {micro * accumulation}
    assert tried[-1].micro_batch == 1
    assert all(a.micro_batch > b.micro_batch for a, b in itertools.pairwise(tried))


@given(peaks=st.lists(st.sampled_from([50, 100]), min_size=48, max_size=48))
def test_it_is_the_first_that_fits(peaks):
    rows = {setting: row(setting, peak) for setting, peak in zip(order(), peaks, strict=True)}
    looked_at = []
    chosen = cheapest(order(), lambda s: looked_at.append(s) or rows[s], unconfirmed)
    if 50 not in peaks:
        assert chosen is None
    else:
        assert chosen is rows[order()[peaks.index(50)]]
        assert looked_at == order()[: peaks.index(50) + 1]  # and nothing after it is worked out


def test_a_setting_that_the_compiler_or_the_configuration_does_not_allow_is_passed_over():
    def estimate(setting):
        return None if setting.stage == 1 else row(setting, 50)

    def confirm(row):
        peak = 60 if row.setting.stage == 3 else 90
        return replace(row, compiled=Compiled(peak * GB, 0, Wire({}, {}), 0.5))

    chosen = cheapest(order(), estimate, confirm)
    assert chosen is not None
    assert chosen.setting == replace(BASE, stage=3)
    assert chosen.peak == 60 * GB


def told(peaks, chosen, *, stages=(0, 1, 2, 3), remat=True, **parts):
    rows = [row(s, peak, **parts) for s, peak in zip(order(), peaks, strict=False)]
    return recommend(None if chosen is None else rows[chosen], rows, stages=stages, remat=remat)


def test_the_reason_says_what_it_takes_and_what_the_closest_cheaper_setting_lacks():
    found = told([120, 88, 70, 20], 2)
    assert found.setting == replace(BASE, stage=2)
    assert found.reason == (
        "Take stage 2: by the closed form it takes 70 GB of the 78.1 GB that a GPU has usable. "
        "What is cheaper does not fit; the closest, stage 1, lacks 9.85 GB."
    )
    closer_than_its_error = ["That is closer than", "By how much stage 1 misses"]
    assert [any(text.startswith(start) for text in found.advice) for start in closer_than_its_error] == [True, True]
    assert told([120, 99, 50, 20], 2).advice == ()
    assert told([50], 0).reason.endswith("Nothing that was asked for is cheaper.")


def test_a_smaller_batch_and_rematerialisation_are_in_the_reason():
    rows = [row(s, 90) for s in order()]
    rows[-8] = row(rows[-8].setting, 30)
    assert "Take stage 0, 1 a GPU x 4 micro-batches, blocks rematerialised: " in (
        recommend(rows[-8], rows, stages=[0], remat=True).reason
    )


def test_with_offloading_it_says_how_many_gpus_would_do_without():
    rows = [row(order()[3], 100, divided=90), row(order()[6], 40)]
    found = recommend(rows[1], rows, stages=[3], remat=False)
    assert "is an estimate" in found.advice[1]
    # 10 GB stay, so 68.1 GB must hold what is 90 GB on 16 GPUs: 21.1 of them, which is three full nodes.
    assert found.advice[:1] == (
        "About 24 such GPUs would hold stage 3 without offloading: 90 GB of its memory are divided by their number.",
    )


NOTHING = "Nothing fits: even stage 3 with optimizer and parameters in host memory takes 100 GB, 21.9 GB too much."


def test_where_nothing_fits_it_says_how_many_gpus_would():
    found = told([900] * 7 + [100], None, divided=850)
    assert found.setting is None
    # 50 GB stay, so 28.1 GB must hold what is 850 GB on 16 GPUs.
    assert found.reason == NOTHING
    assert "About 488 such GPUs would hold stage 0 at this batch size per GPU" in found.advice[0]


@pytest.mark.parametrize(
    ("parts", "remat", "text"),
    [
        ({"gathered_weights": 60}, True, "Gathered weights alone take 60 GB: single layers are too large for this GPU"),
        ({"activations": 60}, True, "Of that, 60 GB are activations: a smaller train_micro_batch_size_per_gpu, short"),
        ({"activations": 60}, False, "a smaller train_micro_batch_size_per_gpu, rematerialised blocks (model.remat"),
    ],
)
def test_where_nothing_fits_it_names_what_is_too_large(parts, remat, text):
    (advice,) = told([900] * 7 + [100], None, remat=remat, **parts).advice
    assert text in advice


def test_stage_3_is_named_where_it_was_left_out():
    assert told([900], None, stages=[0]).advice == ("Add stage 3 to --stages: it divides parameters too.",)
