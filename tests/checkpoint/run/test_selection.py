"""Partial loads and layer forms, by names and shapes alone, and what is said when something does not fit."""

import pytest

from jzero.checkpoint.format.header import Leaf
from jzero.checkpoint.run import selection
from jzero.checkpoint.run.selection import Selection, Source
from jzero.errors import CheckpointError


def leaves(**shapes):
    """`a__b=(2,)` is the leaf `a/b`, `float32[2]`."""
    return {name.replace("__", "/"): Leaf(shape, "float32") for name, shape in shapes.items()}


def match(*arguments):
    return selection.match(*arguments).sources


MODEL = leaves(params__body=(4, 4), params__head=(4, 2), opt_state__mu=(4, 4), step=())


def same(*names):
    return {name: Source((name,)) for name in names}


def test_everything_by_default():
    assert match("c", MODEL, MODEL, Selection()) == same(*MODEL)


def test_everything_that_does_not_fit_is_listed():
    there = {**leaves(params__body=(4, 4), params__head=(4, 9), old=(1,)), "step": Leaf((), "float32")}
    here = {**MODEL, "step": Leaf((), "int32"), **leaves(**{f"new__{i:02}": (i,) for i in range(10)})}
    with pytest.raises(CheckpointError) as error:
        match("c", there, here, Selection())
    message = str(error.value)
    assert message.startswith("The checkpoint c is of another model: 11 of this model's leaves are missing in it (")
    assert "opt_state/mu float32[4,4], new/00 float32[0]" in message
    assert "new/06 float32[6], and 3 more)" in message
    assert "new/07" not in message
    assert "1 leaves exist only in it (old float32[1])" in message
    assert "params/head is float32[4,9] there and float32[4,2] here" in message
    assert "step is float32[] there and int32[] here" in message


def test_parts_are_chosen_by_globs():
    assert match("c", MODEL, MODEL, Selection(only=("params/*",))) == same("params/body", "params/head")
    assert match("c", MODEL, MODEL, Selection(only=("*/body", "step"))) == same("params/body", "step")
    assert match("c", MODEL, MODEL, Selection(never=("params/*",))) == same("opt_state/mu", "step")
    with pytest.raises(CheckpointError, match=r"has none of the leaves to load \(lora/\*\); it has params/body, "):
        match("c", MODEL, MODEL, Selection(only=("lora/*",)))


def test_what_is_not_chosen_may_differ():
    there = leaves(params__body=(4, 4), params__head=(4, 2), elsewhere=(3,))
    assert match("c", there, MODEL, Selection(only=("params/*",))) == same("params/body", "params/head")


def test_missing_extra_and_changed_leaves_may_be_allowed():
    there = leaves(params__body=(4, 4), params__head=(4, 9), extra=(1,))
    here = leaves(params__body=(4, 4), params__head=(4, 2), params__lora=(1,))
    allowed = {"missing": "keep", "extra": "ignore", "changed": "keep"}
    assert match("c", there, here, Selection(**allowed)) == same("params/body")
    for name, words in (
        ("missing", "are missing in it"),
        ("extra", "exist only in it"),
        ("changed", "differ in shape"),
    ):
        with pytest.raises(CheckpointError, match=words):
            match("c", there, here, Selection(**{k: v for k, v in allowed.items() if k != name}))


def test_what_is_kept_left_out_or_grown_is_said():
    there = leaves(params__body=(4, 4), params__head=(4, 9), params__wte=(3, 4), extra=(1,))
    here = leaves(params__body=(4, 4), params__head=(4, 2), params__wte=(5, 4), params__lora=(1,))
    allowed = Selection(missing="keep", extra="ignore", changed="keep", grow="pad")
    found = selection.match("c", there, here, allowed)
    assert found.sources == same("params/body") | {"params/wte": Source(("params/wte",), grown=True)}
    assert found.notes == (
        'The checkpoint c: 1 leaves that it lacks keep their present values, as missing="keep" says '
        "(params/lora float32[1]).",
        'The checkpoint c: 1 leaves that only it has are left out, as extra="ignore" says (extra float32[1]).',
        'The checkpoint c: 1 leaves of another shape or dtype keep their present values, as changed="keep" says '
        "(params/head is float32[4,9] there and float32[4,2] here).",
        'The checkpoint c: 1 leaves take its values as their first part and keep theirs beyond, as grow="pad" says '
        "(params/wte is float32[3,4] there and float32[5,4] here).",
    )
    assert not selection.match("c", MODEL, MODEL, Selection()).notes


@pytest.mark.parametrize(("there", "here"), [((5, 4), (3, 4)), ((3, 4), (5, 3)), ((4,), (3, 4)), ((0, 4), (3, 4))])
def test_only_what_is_longer_and_of_the_same_rank_grows(there, here):
    with pytest.raises(CheckpointError, match="1 differ in shape or dtype"):
        match("c", leaves(x=there), leaves(x=here), Selection(grow="pad"))


def test_a_refusal_says_which_arguments_would_do():
    there, here = leaves(params__wte=(3, 4), step=()), leaves(params__wte=(5, 4), step=())
    with pytest.raises(CheckpointError) as error:
        selection.match("c", there, here, Selection(only=("params/*",)), advise=True)
    assert str(error.value).endswith(
        'engine.load_checkpoint can take it with grow="pad" (saved values become the first part of longer leaves, the '
        'rest stays), changed="keep" (none of the saved values of these leaves).'
    )
    with pytest.raises(CheckpointError) as error:
        selection.match("c", {**there, "old": here["step"]}, leaves(step=(), new=(2,)), Selection(), advise=True)
    assert 'with missing="keep" (this model\'s present values stay), extra="ignore" (' in str(error.value)
    assert "grow" not in str(error.value)


def test_nothing_left_to_load_says_why():
    there, here = leaves(params__wte=(3, 4), step=()), leaves(params__wte=(5, 4), step=())
    with pytest.raises(CheckpointError) as error:
        match("c", there, here, Selection(only=("params/*",), changed="keep"))
    assert str(error.value) == (
        "Nothing of the checkpoint c would be loaded (params/*). The checkpoint c: 1 leaves of another shape or dtype "
        'keep their present values, as changed="keep" says '
        "(params/wte is float32[3,4] there and float32[5,4] here)."
    )


def test_floating_dtypes_may_differ_and_others_not():
    as_dtype = lambda dtype: {"x": Leaf((2,), dtype)}
    assert match("c", as_dtype("float32"), as_dtype("bfloat16"), Selection()) == same("x")
    for there, here in (("int32", "int8"), ("float32", "int32"), ("bool", "float32")):
        with pytest.raises(CheckpointError, match=rf"x is {there}\[2\] there and {here}\[2\] here"):
            match("c", as_dtype(there), as_dtype(here), Selection())


UNROLLED = leaves(**{f"params__h__{i}__w": (3,) for i in range(12)}, params__w=(1,), opt_state__mu__h__0__w=(3,))
UNROLLED |= leaves(**{f"opt_state__mu__h__{i}__w": (3,) for i in range(12)})
SCANNED = leaves(params__h__w=(12, 3), opt_state__mu__h__w=(12, 3), params__w=(1,))
FORMS = Selection(layers={"h/*": "h"})


def test_unrolled_layers_become_scanned_ones_in_the_order_of_their_numbers():
    sources = match("c", UNROLLED, SCANNED, FORMS)
    assert sources["params/h/w"] == Source(tuple(f"params/h/{i}/w" for i in range(12)), stacked=True)
    assert sources["opt_state/mu/h/w"].names[10] == "opt_state/mu/h/10/w"
    assert sources["params/w"] == Source(("params/w",))


def test_scanned_layers_become_unrolled_ones():
    sources = match("c", SCANNED, UNROLLED, FORMS)
    assert sources["params/h/10/w"] == Source(("params/h/w",), index=10, n_layers=12)
    assert len(sources) == 25


def test_the_same_form_needs_no_mapping_and_may_have_one():
    assert match("c", UNROLLED, UNROLLED, FORMS) == same(*UNROLLED)
    assert match("c", SCANNED, SCANNED, FORMS) == same(*SCANNED)


def test_names_with_the_number_inside():
    linen = leaves(params__h_0__w=(3,), params__h_1__w=(3,))
    sources = match("c", linen, leaves(params__h__w=(2, 3)), Selection(layers={"h/*": "h", "h_*": "h"}))
    assert sources == {"params/h/w": Source(("params/h_0/w", "params/h_1/w"), stacked=True)}


def test_another_number_of_layers_does_not_fit():
    fewer = {name: leaf for name, leaf in UNROLLED.items() if "/11/" not in name}
    with pytest.raises(
        CheckpointError, match=r"params/h/w is 11 layers of float32\[3\] there and float32\[12,3\] here"
    ):
        match("c", fewer, SCANNED, FORMS)
    with pytest.raises(CheckpointError, match=r"params/h/0/w is float32\[12,3\] there and float32\[3\] here"):
        match("c", SCANNED, fewer, FORMS)
    with pytest.raises(CheckpointError, match="are missing in it"):
        match("c", UNROLLED, SCANNED, Selection())


def test_a_mapping_without_a_number_is_refused():
    with pytest.raises(CheckpointError, match="'h' must have one"):
        match("c", UNROLLED, SCANNED, Selection(layers={"h": "h"}))
