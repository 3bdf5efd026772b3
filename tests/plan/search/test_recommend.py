"""Which setting is recommended, and what is said where none fits: on rows made up for the purpose."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from jzero.plan.hardware.cluster import Cluster
from jzero.plan.hardware.links import LinkTraffic
from jzero.plan.hardware.pace import StepTime
from jzero.plan.memory_use import PARTS
from jzero.plan.search.recommendation import cheapest, cost, costs, recommend
from jzero.plan.search.row import Compiled, Row
from jzero.plan.search.setting import Setting, fallbacks, settings

CLUSTER = Cluster("h100-80g", 16)
BASE = Setting(0, "nothing", 4, 1)
GB = 10**9
FAST = StepTime(1, 1, 1, 0, 0, 0, 0)


def row(setting: Setting, peak: float, *, seconds: float = 1, divided: float = 0, **parts: float) -> Row:
    """A row whose peak is `peak` GB, what `parts` leaves of it being `rest`."""
    known = {name: round(parts.get(name, 0) * GB) for name in PARTS}
    known["rest"] = round(peak * GB) - sum(known.values())
    time = replace(FAST, compute=seconds)
    offloads, wire = setting.offload != "nothing", LinkTraffic({}, {})
    return Row(setting, CLUSTER, 1, known, round(divided * GB), 0, 0, 0, wire, {}, offloads, time)


def every(base: Setting = BASE, *, remat: bool = True) -> list[Setting]:
    found = list(settings(base, range(4)))
    for setting in found:
        found += [s for s in fallbacks(setting, divisible=True, remat=remat) if s not in found]
    return found


def search(rows, *, confirm=None):
    """What `cheapest` finds among rows, and the settings that it asked for."""
    asked = []
    chosen = cheapest(
        settings(BASE, range(4)),
        lambda setting: fallbacks(setting, divisible=True, remat=True),
        lambda setting: asked.append(setting) or rows.get(setting),
        confirm,
    )
    return chosen, asked


def test_there_are_four_stages_what_each_offloads_all_micro_batches_and_both_forms_of_the_model():
    assert [(s.stage, s.offload) for s in settings(BASE, range(4))] == [
        (0, "nothing"),
        (1, "nothing"),
        (2, "nothing"),
        (3, "nothing"),
        (1, "optimizer"),
        (2, "optimizer"),
        (3, "optimizer"),
        (3, "optimizer and parameters"),
    ]
    assert len(every()) == len(set(every())) == 8 * 3 * 2
    assert len(every(remat=False)) == 8 * 3


@bounded(max_examples=30, deadline=None, derandomize=True)
@given(micro=st.integers(1, 60), accumulation=st.integers(1, 9))
def test_a_smaller_micro_batch_leaves_the_batch_as_it_is(micro, accumulation):
    tried = every(Setting(0, "nothing", micro, accumulation), remat=False)
    assert {s.micro_batch * s.accumulation for s in tried} == {micro * accumulation}
    assert {s.micro_batch for s in tried} >= {1, micro}


def test_what_takes_more_than_the_hosts_have_does_not_fit():
    moved = [replace(BASE, stage=1, offload="optimizer"), replace(BASE, stage=3, offload="optimizer")]
    with_host = lambda limit: {
        BASE: replace(row(BASE, 200), cluster=replace(CLUSTER, host_memory=limit)),
        **{s: replace(row(s, 40), cluster=replace(CLUSTER, host_memory=limit), host=20 * GB) for s in moved},
    }
    for limit, setting in ((None, moved[0]), (8 * 20 * GB, moved[0]), (8 * 20 * GB - 1, None)):  # 8 GPUs to a node
        chosen, _ = search(with_host(limit))
        assert (chosen and chosen.setting) == setting
    said = recommend(None, list(with_host(150 * GB).values()), base=BASE, stages=(0, 1, 3), remat=False, on=on_more)
    assert said.reason.endswith(" takes 160 GB of host memory per node, 10 GB too much.")
    assert said.advice[-1] == "More nodes share what is in host memory."


def test_the_faster_setting_is_cheaper_and_of_equally_fast_ones_the_simpler():
    slow, fast = row(BASE, 1, seconds=1.1), row(replace(BASE, stage=3, offload="optimizer"), 1)
    assert cost(fast) < cost(slow)
    alike = [row(setting, 1, seconds=1 + i / 1e5) for i, setting in enumerate(reversed(every(remat=False)))]
    simplest = [row.setting for row in sorted(alike, key=cost)]
    assert [(s.stage, s.offload, s.micro_batch) for s in simplest[:4]] == [
        *[(0, "nothing", micro) for micro in (4, 2, 1)],
        (1, "nothing", 4),
    ]
    assert simplest[-1] == Setting(3, "optimizer and parameters", 1, 4)


def test_times_of_different_batches_compare_by_the_sample():
    larger = row(Setting(0, "nothing", 8, 1), 1, seconds=1.9)
    assert cost(larger) < cost(row(BASE, 1))


def test_rematerialisation_is_never_cheaper_than_doing_without():
    plain, again = row(BASE, 1), row(replace(BASE, remat=True), 1, seconds=0.5)
    order = costs({r.setting: r for r in (plain, again)})
    assert order[plain.setting] < order[again.setting]


@bounded(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_it_is_the_cheapest_that_fits(data):
    seconds = st.sampled_from([1.0, 1.2, 1.5, 2.0])
    rows: dict[Setting, Row] = {}
    for setting in every():  # a smaller micro-batch never takes less time
        before = rows.get(replace(setting, micro_batch=setting.micro_batch * 2, accumulation=setting.accumulation // 2))
        time = data.draw(seconds) * (before.closed_form_time.middle if before else 1)
        rows[setting] = row(setting, data.draw(st.sampled_from([50, 100])), seconds=time)
    order, (chosen, asked) = costs(rows), search(rows)
    fitting = [s for s in rows if rows[s].fits]
    assert (chosen and chosen.setting) == min(fitting, key=lambda s: order[s], default=None)
    assert len(asked) == len(set(asked))


def test_no_more_is_worked_out_than_it_takes():
    rows = {setting: row(setting, 50) for setting in every()}
    assert search(rows) == (rows[BASE], list(settings(BASE, range(4))))
    # What lasts is too large already, and a smaller batch would not help.
    rows |= {s: row(s, 200, parameters=150) for s in rows if s.stage < 3}
    chosen, asked = search(rows)
    assert chosen is rows[replace(BASE, stage=3)]
    assert asked == list(settings(BASE, range(4)))


def test_what_the_compiler_or_the_configuration_does_not_allow_is_passed_over():
    rows = {setting: row(setting, 50) for setting in every() if setting.stage != 1}

    def confirm(row):
        peak = 60 if row.setting.stage == 3 else 90
        return replace(row, compiled=Compiled(peak * GB, 0, LinkTraffic({}, {}), 0.5, FAST))

    chosen, _ = search(rows, confirm=confirm)
    assert chosen is not None
    assert chosen.setting == replace(BASE, stage=3)
    assert chosen.peak == 60 * GB


def test_the_compiler_is_asked_where_the_closed_form_may_be_too_high():
    rows = {setting: row(setting, 100) for setting in every()} | {BASE: row(BASE, 90)}
    confirm = lambda row: replace(row, compiled=Compiled(70 * GB, 0, LinkTraffic({}, {}), 0.5, FAST))
    assert search(rows)[0] is None
    chosen, _ = search(rows, confirm=confirm)
    assert chosen is not None
    assert chosen.setting == BASE


def told(peaks, chosen, *, stages=(0, 1, 2, 3), remat=True, on=lambda *_: None, **parts):
    """What is said of the settings of the base's batch; each is a bit slower than the one before."""
    found = zip(settings(BASE, range(4)), peaks, strict=False)
    rows = [row(s, peak, seconds=1 + i / 10, **parts) for i, (s, peak) in enumerate(found)]
    return recommend(None if chosen is None else rows[chosen], rows, base=BASE, stages=stages, remat=remat, on=on)


def test_the_reason_says_what_it_takes_and_what_the_closest_cheaper_setting_lacks():
    found = told([120, 88, 70, 20], 2)
    assert found.setting == replace(BASE, stage=2)
    assert found.reason == (
        "Take stage 2: by the closed form it takes 70 GB of 78.1 GB usable. "
        "What is faster does not fit; the closest, stage 1, lacks 9.85 GB."
    )
    closer_than_its_error = ["That is closer than", "By how much stage 1 misses"]
    assert [any(text.startswith(start) for text in found.advice) for start in closer_than_its_error] == [True, True]
    assert told([120, 99, 50, 20], 2).advice == ()
    assert told([50, 10], 0).reason.endswith("Nothing that was asked for is faster.")
    assert told([99, 50], 1).reason.endswith("What is faster does not fit: stage 0 lacks 20.9 GB.")


def test_a_smaller_batch_and_rematerialisation_are_in_the_reason():
    rows = [row(s, 90) for s in every()]
    last = replace(BASE, micro_batch=1, accumulation=4, remat=True)
    rows.append(row(last, 30, seconds=2))
    assert "Take stage 0, 1 a GPU x 4 micro-batches, blocks rematerialised: " in (
        recommend(rows[-1], rows, base=BASE, stages=[0], remat=True, on=lambda *_: None).reason
    )


def test_with_offloading_it_says_how_many_gpus_would_do_without():
    plain, offloaded = replace(BASE, stage=3), replace(BASE, stage=3, offload="optimizer")
    rows = [row(plain, 100, divided=90), row(offloaded, 40, seconds=2)]
    on = lambda setting, n_gpus: replace(row(setting, 10 + 90 * 16 / n_gpus), cluster=Cluster("h100-80g", n_gpus))
    found = recommend(rows[1], rows, base=BASE, stages=[3], remat=False, on=on)
    assert "is an estimate" in found.advice[1]
    # 10 GB stay, so 68.1 GB must hold what is 90 GB on 16 GPUs: 21.1 of them, which is three full nodes.
    assert found.advice[:1] == (
        "About 24 such GPUs would hold stage 3 without offloading: 90 GB of its memory are divided by their number.",
    )


def on_more(setting, n_gpus):
    """Stage 0 of 100 GB on 16 GPUs, of which 50 stay; what is divided comes in pieces that need another node."""
    left = 50 + 50 * 16 / (n_gpus - 8)
    return replace(row(setting, left, divided=left - 50), cluster=Cluster("h100-80g", n_gpus))


def test_where_nothing_fits_it_says_how_many_gpus_would():
    found = told([100] + [900] * 7, None, divided=50, on=on_more)
    assert found.setting is None
    assert found.reason == "Nothing fits: even stage 0 takes 100 GB, 21.9 GB too much."
    # 28.1 GB must hold what is 50 GB on 16 GPUs: 32 would by proportion, and do not by the closed form; 40 do.
    assert not on_more(BASE, 32).fits
    assert found.advice[0].startswith("About 40 such GPUs would hold stage 0 at this batch size per GPU")


def test_gpus_that_the_configuration_refuses_are_not_advised():
    assert not told([100] + [900] * 7, None, divided=50).advice


@pytest.mark.parametrize(
    ("parts", "remat", "text"),
    [
        ({"gathered_weights": 60}, True, "Gathered weights alone take 60 GB: a lower stage3_max_live_parameters "),
        ({"activations": 60}, True, "Of that, 60 GB are activations: a smaller train_micro_batch_size_per_gpu, short"),
        ({"activations": 60}, False, "a smaller train_micro_batch_size_per_gpu, rematerialised blocks (model.remat"),
    ],
)
def test_where_nothing_fits_it_names_what_is_too_large(parts, remat, text):
    (advice,) = told([900] * 7 + [100], None, remat=remat, **parts).advice
    assert text in advice


def test_stage_3_is_named_where_it_was_left_out():
    assert told([900], None, stages=[0]).advice == ("Add stage 3 to --stages: it divides parameters too.",)
