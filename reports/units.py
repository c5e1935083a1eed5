"""Numbers as people read them. GB is 1e9 bytes, GiB is 2^30 bytes; FLOPs count 2 per multiply-add."""

from __future__ import annotations

BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
STEP = 1024


def size(count: float) -> str:
    """Return bytes in the largest binary unit that leaves at least 1: 131072 is "128 KiB"."""
    power = 0
    while power < len(BINARY) - 1 and count >= STEP ** (power + 1):
        power += 1
    value = count / STEP**power
    return (
        f"{count:,.0f} bytes"
        if power == 0
        else f"{value:,.4g} {BINARY[power]}"
        if value < 1000
        else f"{value:,.0f} {BINARY[power]}"
    )


def amount(count: float | None, unit: str = "") -> str:
    """Return a count with a decimal prefix and three digits: 15010000000 "FLOP" is "15.0 GFLOP"; None is "-"."""
    if count is None:
        return "-"
    power = 0
    while power < len(DECIMAL) - 1 and abs(count) >= 999.5 * 1000**power:
        power += 1
    value = count / 1000**power
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:.{digits}f}" if power or value != int(value) else f"{value:.0f}"
    return f"{text} {DECIMAL[power]}{unit}".rstrip()


def ratio(value: float | None) -> str:
    """Return a ratio: whole where it is whole, else three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}x" if value == int(value) or value >= 1000 else f"{value:.3g}x"


def bar(share: float, width: int) -> str:
    """Return a bar of at most `width` characters, in eighths of one."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
