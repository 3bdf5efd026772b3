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
