"""The parser on small texts: types, instructions, attributes, computations."""

import pytest

from jzero.plan.compiled.hlo import Array, leaves, parse_module, parse_type

TEXT = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=8

FileNames
1 "train.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main.3_spmd (a: f32[4], /*index=1*/b: (f32[4], s32[])) -> (f32[4], s32[]), execution_thread="main" {
  %a = f32[4]{0} parameter(0), sharding={replicated}, metadata={op_name="batch[\\'x\\']"}
  %b = (f32[4]{0}, s32[]) parameter(1)
  ROOT %out = (f32[4]{0}, /*index=1*/s32[]) custom-call(f32[4]{0:T(128)} %a, (f32[4]{0}, s32[]) %b), ATTRIBUTES
  %late = s32[] get-tuple-element(%b), index=1
}
""".replace(
    "ATTRIBUTES",
    'custom_call_target="f", called_computations={%add}, metadata={op_name="jit(f)/call" stack_frame_id=1}, '
    'backend_config={"n":"1"}',
)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("f32[2,3]{1,0}", 24),
        ("bf16[8]{0:T(8,128)(2,1)S(5)}", 16),
        ("f16[]", 2),
        ("pred[5]", 5),
        ("s4[3]", 2),
        ("u8[0]{0}", 0),
        ("f8e4m3fn[7]", 7),
        ("f4e2m1fn[4]", 2),
        ("c64[2]", 16),
        ("s32[<=4]", 16),
        ("token[]", 0),
    ],
)
def test_bytes_of_every_width(text, n_bytes):
    array = parse_type(text)
    assert isinstance(array, Array)
    assert array.n_bytes == n_bytes


def test_nested_tuple_types():
    type_ = parse_type("((f32[2]{0}, (s8[1], pred[])), (), u32[])")
    assert [array.dtype for array in leaves(type_)] == ["f32", "s8", "pred", "u32"]
    assert parse_type("()") == ()


def test_a_module():
    module = parse_module(TEXT)
    assert (module.entry, module.n_partitions) == ("main.3_spmd", 8)
    assert list(module.computations) == ["add", "main.3_spmd"]
    main = module.computations["main.3_spmd"]
    assert list(main.instructions) == ["a", "b", "out", "late"]
    assert main.root.name == "out"  # marked, though not printed last
    out = main.root
    assert (out.opcode, out.operands, out.called) == ("custom-call", ("a", "b"), ("add",))
    assert out.type == (Array("f32", (4,)), Array("s32", ()))
    assert out.op_name == "jit(f)/call"
    assert out.attribute("custom_call_target") == '"f"'
    assert out.attribute("index") is None
    assert main.instructions["late"].attribute("index") == "1"
    assert main.instructions["b"].op_name == ""


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no computation is marked ENTRY"):
        parse_module("a poem\nin two lines")
