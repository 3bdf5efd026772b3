"""Numbers as people read them."""

from jzero.base.units import format_bytes


def test_sizes_read_well():
    sizes = (0, 999, 1000, 123456, 7.5e9, 3.2e12)
    assert [format_bytes(n) for n in sizes] == ["0 B", "999 B", "1 kB", "123 kB", "7.5 GB", "3.2 TB"]
