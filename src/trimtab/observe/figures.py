"""How numbers are written for people: few digits, durations, ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def short(value: float, digits: int = 3) -> str:
    """A number in ASCII with about `digits` significant digits, thousands separated.

    >>> short(0.53149), short(-0.00123, 2), short(1234.5), short(0.0000213, 2), short(12.0)
    ('0.531', '-0.0012', '1,234', '2.1e-5', '12')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if size < 1e-4 or size >= 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_without_zeros(mantissa)}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return _without_zeros(f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}")


def typeset(value: float, digits: int = 3) -> str:
    """`short`, with a true minus sign and powers of ten.

    >>> typeset(-0.0000213)
    '−2.13×10⁻⁵'
    """
    mantissa, _, exponent = short(value, digits).partition("e")
    if not exponent or not math.isfinite(value):
        return short(value, digits).replace("-", "−")
    return f"{mantissa.replace('-', '−')}×10{exponent.translate(SUPERSCRIPTS)}"


def alike(values: Sequence[float]) -> list[str]:
    """Numbers to be compared, typeset with equal decimals: three digits of the largest.

    >>> alike([0.0501, 0.956]), alike([2e-6, 1.0])
    (['0.050', '0.956'], ['0.00', '1.00'])
    """
    largest = max(map(abs, values), default=0.0)
    if not 1e-3 <= largest < 1e3:
        return [typeset(value) for value in values]
    decimals = max(0, 2 - math.floor(math.log10(largest)))
    return [f"{value:.{decimals}f}".replace("-", "−") for value in values]


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter.

    >>> duration(0.84), duration(45.2), duration(72), duration(7500), duration(273600)
    ('0.8s', '45s', '1m12s', '2h05m', '3d04h')
    """
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{part_unit}"
    return f"{whole}s"


def limits(values: Iterable[float]) -> tuple[float, float]:
    """The range of an axis: a little wider than the values, from 0 if they come near it, never empty.

    >>> limits([0.0, 1.0]), limits([0.0]), limits([])
    ((0.0, 1.05), (-1.0, 1.0), (0.0, 1.0))
    """
    known = list(values)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        spread = abs(high) / 2 or 1.0
        return low - spread, high + spread
    margin = 0.05 * (high - low)
    if 0 <= low < 0.4 * high:
        return 0.0, high + margin
    if 0 >= high > 0.4 * low:
        return low - margin, 0.0
    return low - margin, high + margin


def ticks(low: float, high: float, *, most: int = 5, whole: bool = False) -> list[float]:
    """At most `most` round numbers from `low` to `high`, evenly spaced; whole ones where `whole` is set.

    >>> ticks(0.0, 1.0), ticks(0.0, 60.0), ticks(7.0, 7.0, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 20.0, 40.0, 60.0], [7.0])
    """
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)] or [float(round((low + high) / 2))]


def tick_labels(places: Sequence[float]) -> tuple[list[str], str]:
    """Labels of ticks with equal decimals, and the power of ten that they share ('' for 1).

    >>> tick_labels([0.0, 0.0002, 0.0004]), tick_labels([-0.5, 0.0, 0.5])
    ((['0', '2', '4'], '×10⁻⁴'), (['−0.5', '0.0', '0.5'], ''))
    """
    largest = max(map(abs, places))
    power = math.floor(math.log10(largest)) if largest and not 1e-2 <= largest < 1e5 else 0
    scaled = [float(f"{place / 10.0**power:.9g}") for place in places]
    decimals = max(len(f"{value:.9g}".partition(".")[2]) for value in scaled)
    labels = [f"{value:,.{decimals}f}".replace("-", "−") for value in scaled]
    return labels, f"×10{str(power).translate(SUPERSCRIPTS)}" if power else ""


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
