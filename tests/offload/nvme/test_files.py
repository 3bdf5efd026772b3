"""Files of the optimizer's state: direct I/O, sub-groups, two generations, and what is refused."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.errors import ConfigError, JzeroError, OffloadError
from jzero.offload.nvme import folder as folder_module
from jzero.offload.nvme.disk import ALIGNMENT, Disk, File, aligned_memory
from jzero.offload.nvme.folder import Folder
from jzero.offload.nvme.groups import Shard, cut
from jzero.offload.nvme.pipeline import run_stations

N_BYTES = 4 * ALIGNMENT


@pytest.mark.parametrize(("block_size", "depth"), [(1, 1), (5000, 3), (1 << 20, 8)])
def test_what_is_read_is_what_was_written(tmp_path, block_size, depth):
    disk, file = Disk(block_size, depth), File(tmp_path / "file", 5 * ALIGNMENT)
    written, read = aligned_memory(N_BYTES), aligned_memory(N_BYTES)
    written[:] = np.random.default_rng(0).integers(0, 256, N_BYTES)
    disk.write(file, written, ALIGNMENT)
    disk.read(file, read, ALIGNMENT)
    np.testing.assert_array_equal(read, written)
    assert (tmp_path / "file").read_bytes() == bytes(ALIGNMENT) + written.tobytes()
    file.close()


def test_a_file_that_has_lost_its_end_is_named(tmp_path):
    file = File(tmp_path / "file", N_BYTES)
    os.truncate(tmp_path / "file", ALIGNMENT)
    with pytest.raises(OffloadError, match=r"/file could not be read: it ends too early\.$"):
        Disk(ALIGNMENT, 2).read(file, aligned_memory(N_BYTES), 0)
    file.close()


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=8),
    st.integers(1, 50),
)
@settings(max_examples=50, deadline=None)
def test_groups_hold_every_element_once_and_do_not_overlap(sizes, group_elements):
    shards = [Shard(size, kind) for size, kind in sizes]
    dtypes = [[np.dtype(np.float32)] * 3, [np.dtype(np.float32)], [np.dtype(np.float16), np.dtype(np.float32)]]
    groups = cut(shards, dtypes, group_elements)
    elements = [(s.shard, i) for g in groups for s in g.segments for i in range(s.start, s.stop)]
    assert sorted(elements) == [(number, i) for number, shard in enumerate(shards) for i in range(shard.size)]
    end = 0
    for group in groups:
        assert {shards[s.shard].kind for s in group.segments} == {group.kind}
        assert group.size == sum(s.stop - s.start for s in group.segments) <= group_elements
        assert group.offset == end
        assert not group.offset % ALIGNMENT
        memory, end = np.zeros(group.n_bytes, np.uint8), group.offset + group.n_bytes
        for array, dtype in enumerate(dtypes[group.kind]):
            view = group.view(memory, array, dtype)
            assert not view.any()  # no other array of the group has written here
            view[:] = 1


def test_stations_take_one_at_a_time_and_stop_at_the_first_failure():
    inside, seen = [0], []

    def station(item, buffer):
        inside[0] += 1
        assert inside[0] == 1
        if item == 3:
            raise OffloadError("no more")
        seen.append(item)
        inside[0] -= 1

    with pytest.raises(OffloadError, match="no more"):
        run_stations(range(100), [None, None], [station])
    assert 3 not in seen  # which of two threads comes first, nobody can tell
    inside[0] = 0
    seen.clear()
    with pytest.raises(OffloadError, match="no more"):
        run_stations(range(100), [None], [station])
    assert seen == [0, 1, 2]


def test_a_generation_counts_from_its_commit_on(tmp_path):
    first = Folder(tmp_path / "run", N_BYTES, "layout")
    first.replace()
    assert first.steps() == {}
    target = first.begin(4, lambda: {"count": np.int32(4)})
    assert first.steps() == {0: 4}
    assert target is not first.file
    first.commit(5, lambda: {"count": np.int32(5)})
    assert (first.file, first.steps()) == (target, {0: 4, 1: 5})
    first.begin(5, dict)
    assert first.steps() == {1: 5}  # the older one is being written to
    first.close()

    second = Folder(tmp_path / "run", N_BYTES, "layout")
    second.replace()  # a new run's initial state does not touch what counts
    assert second.steps() == {1: 5}
    assert second.adopt(5) == {"count": 5}
    assert second.begin(5, dict) is not second.file
    second.close()

    third = Folder(tmp_path / "run", N_BYTES, "another layout")
    assert third.steps() == {}
    third.close()


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    running = Folder(tmp_path / "run", N_BYTES, "layout")
    with pytest.raises(JzeroError, match=r"being written by another run \(process \d+ on"):
        Folder(tmp_path / "run", N_BYTES, "layout")
    running.close()
    Folder(tmp_path / "run", N_BYTES, "layout").close()


def test_a_full_disk_is_known_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 3 * ALIGNMENT})
    monkeypatch.setattr(folder_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"takes 32\.8 kB in .*/run \(twice.*12\.3 kB are free; set .*nvme_path"):
        Folder(tmp_path / "run", N_BYTES, "layout")
    assert not list(tmp_path.glob("run/generation*"))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"nvme_path: .*/file/run cannot be used: Not a directory; name a folder"):
        Folder(tmp_path / "file" / "run", N_BYTES, "layout")
