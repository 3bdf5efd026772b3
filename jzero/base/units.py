"""Numbers as people read them."""


def format_bytes(n_bytes: float) -> str:
    """Writes a size in decimal units, as the ZeRO paper counts them, to three digits.

    Example:
        >>> format_bytes(640), format_bytes(1.5e6), format_bytes(119.6e9), format_bytes(2.613e12)
        ('640 B', '1.5 MB', '120 GB', '2.61 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 999.5 or unit == "TB":
            break
        n_bytes /= 1000
    return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 99.95 else f"{n_bytes:.3g} {unit}"


def format_count(n: float, unit: str) -> str:
    """A number of something with four digits and a prefix of the SI.

    Example:
        >>> format_count(1_404_583_000_000_000, "FLOP"), format_count(0.00124, "s"), format_count(7, "FLOP")
        ('1.405 PFLOP', '1.24 ms', '7 FLOP')
    """
    scale = next((i for i in range(5, -3, -1) if abs(n) >= 1000.0**i), 0)
    return f"{n / 1000.0**scale:.4g} {['', 'k', 'M', 'G', 'T', 'P', 'µ', 'm'][scale]}{unit}"
