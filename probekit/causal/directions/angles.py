"""Angles between directions, and the angles of random directions (the Haar measure of the sphere).

In D dimensions cos^2 of the angle between a fixed line and a random one has the distribution Beta(1/2, (D - 1)/2).
"""

import math
from typing import Any

from scipy.special import betainc, betaincinv

from probekit.errors import DataError, UsageError
from probekit.interventions.given import to_tensor
from probekit.options.check import check_whole, is_real
from probekit.text import kind_of


def angle(a: Any, b: Any) -> float:
    """The angle between the lines along two vectors [D], 0 to 90 degrees; signs and lengths do not matter.

    Raises:
        DataError: a vector of length 0, or not finite.
        UsageError: vectors of different widths.
    """
    first, second = to_tensor(a), to_tensor(b)
    if first is None or second is None:
        raise UsageError(f"angles are between two vectors [D] of numbers; got {kind_of(a)} and {kind_of(b)}")
    first, second = (x.detach().double().cpu() for x in (first, second))
    if first.dim() != 1 or first.shape != second.shape:
        raise UsageError(f"angles are between two vectors [D]; got {list(first.shape)} and {list(second.shape)}")
    for x in (first, second):
        if not 0 < float(x.norm()) < math.inf:
            raise DataError(f"a vector of length {float(x.norm()):g} has no direction; leave it out")
    first, second = first / first.norm(), second / second.norm()
    second = second if float(first @ second) >= 0 else -second
    # not acos: it loses half of the digits near 0 degrees (Kahan 2006)
    return math.degrees(2 * math.atan2(float((first - second).norm()), float((first + second).norm())))


def haar_angle(D: int, share: float) -> float:
    """The angle in degrees within which a share of random directions lies to any fixed one.

    `haar_angle(768, 0.05)` is 85.9: only 5% of random directions of 768 dimensions are that near.

    Raises:
        UsageError: fewer than two dimensions, or a share that is not between 0 and 1.
    """
    if not is_real(share) or not 0 < share < 1:
        raise UsageError(f"share must be between 0 and 1; got {share!a:.60}")
    return math.degrees(math.asin(math.sqrt(betaincinv((check_whole("D", D, 2) - 1) / 2, 0.5, share))))


def haar_share(D: int, degrees: float) -> float:
    """The share of random directions that lie within this angle to a fixed one: the p-value of an angle.

    Raises:
        UsageError: fewer than two dimensions, or an angle that is not in 0..90.
    """
    if not is_real(degrees) or not 0 <= degrees <= 90:
        raise UsageError(f"degrees must be in 0..90; got {degrees!a:.60}")
    return float(betainc((check_whole("D", D, 2) - 1) / 2, 0.5, math.sin(math.radians(degrees)) ** 2))
