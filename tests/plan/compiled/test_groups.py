"""Device groups in every notation, and the mesh axes they run along."""

import pytest

from jzero.plan.compiled.groups import Groups, read_groups
from jzero.plan.compiled.hlo import Array, Instruction

MESH = {"replica": 2, "shard": 4, "tensor": 1}


def groups_of(attributes, mesh_shape=MESH):
    line = Instruction(
        "x", "all-gather", Array("f32", (8,)), ("y",), "%y", f"channel_id=1, {attributes}, dimensions={{0}}"
    )
    return read_groups(line, n_partitions=8, mesh_shape=mesh_shape)


@pytest.mark.parametrize(
    ("attributes", "size", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4, ("shard",)),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", 2, ("replica",)),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", 8, ("replica", "shard")),
        ("replica_groups={}", 8, ("replica", "shard")),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", 2, None),
        ("replica_groups=[2,4]<=[8]", 4, ("shard",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2, ("replica",)),
        ("replica_groups=[8,1]<=[8]", 1, ()),
        ("replica_groups=mesh['replica'=2,'shard'=4,'tensor'=1] {'shard'}", 4, ("shard",)),
        ("replica_groups=mesh['replica'=2,'shard'=4,'tensor'=1] {'replica','shard','tensor'}", 8, ("replica", "shard")),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", 2, ("replica",)),
        ("replica_groups=mesh['shard'=8] {'shard':(1)4}", 4, None),
        ("replica_groups=mesh['a'=2,'b'=4, device_ids=([8]<=[2,4]T(1,0))] {'b'}", 4, None),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", 4, None),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", 4, ("shard",)),
        ("source_target_pairs={{0,4},{4,0}}", 2, None),
    ],
)
def test_notations(attributes, size, axes):
    assert groups_of(attributes) == Groups(size, axes)


def test_without_a_mesh_only_printed_axes_have_names():
    assert groups_of("replica_groups={{0,1,2,3},{4,5,6,7}}", None) == Groups(4, None)
    assert groups_of("replica_groups=mesh['replica'=2,'shard'=4] {'shard'}", None) == Groups(4, ("shard",))


def test_an_unknown_notation_is_not_guessed():
    with pytest.raises(ValueError, match="groups of x are in no known notation"):
        groups_of("replica_groups=all")


@pytest.mark.parametrize(
    ("attributes", "nodes", "per_node"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", [0] * 8, 4),
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", [0] * 4 + [1] * 4, 4),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", [0] * 4 + [1] * 4, 1),
        ("replica_groups={}", [0] * 4 + [1] * 4, 4),
        ("replica_groups=[2,4]<=[8]", [0, 0, 1, 1, 2, 2, 3, 3], 2),
        ("replica_groups=mesh['replica'=2,'shard'=4,'tensor'=1] {'shard'}", [0, 0, 1, 1, 2, 2, 3, 3], 2),
        ("replica_groups=mesh['shard'=8] {'shard':(1)4}", [0] * 4 + [1] * 4, 1),  # not known: the worst
        ("replica_groups=mesh['shard'=8] {'shard':(1)4}", [0] * 8, 4),
    ],
)
def test_who_shares_a_node(attributes, nodes, per_node):
    assert groups_of(attributes).per_node(nodes) == per_node
    if "mesh" in attributes and ":" not in attributes:
        assert groups_of(attributes, None).per_node(nodes) == per_node
