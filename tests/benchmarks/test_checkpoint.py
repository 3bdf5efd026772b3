"""The checkpoint benchmark runs from end to end in a small form, and prints what it promises."""

from tests.benchmarks.test_scripts import run


def test_checkpoint_measures_every_part():
    results = run("checkpoint.py", "--megabytes=50", "--rounds=1")
    assert 50.331 < results["megabytes"] < 50.333  # a layer of 12 bytes a parameter, and a few scalars
    assert results["median_seconds"].keys() == results["seconds"].keys() >= {"load", "plain copy", "plain read"}
    assert results["stall_share"] > 0
    assert results["export"]["largest_leaf"] == 4 * 2048**2
    assert results["export"]["written"] > 4 * 2048**2
