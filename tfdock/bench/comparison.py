"""Decide from pairs of processes which side is faster, and how uncertain the answer is. Pure.

Each pair gives one number: the logarithm of the ratio of both times. The rounds within a pair are not independent: of
two processes of one program, one can be slower during its whole life. So the interval is Student's, with one number
for each pair.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Literal

SUITE = "all together"  #: The name of the line for the geometric mean of all operations.
#: Few users need smaller differences, so they are not reported. Of 20 comparisons of a TensorFlow with itself, each
#: with 24 pairs, two found an operation that differed, by 1.2 and 1.5 %.
_MEANT = 0.02
_STEPS = 400  #: Steps of Simpson's rule. The error of the quantiles that are used is below 1e-9.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of an operation on both sides."""

    operation: str  #: The operation's name.
    ratio: float  #: The second side's time divided by the first's: the geometric mean over the pairs.
    low: float  #: The ratio is between `low` and `high` with a probability of 95 %.
    high: float  #: See `low`.
    #: Like `low`, but the 95 % apply to all operations together. For the suite, equal to `low`. `verdict` uses this.
    surely_low: float
    surely_high: float  #: See `surely_low`.
    #: Whether the second side is faster or slower; `none` if no difference of 2 % or more was found.
    verdict: Literal["faster", "slower", "none"]
    excluded: float  #: The slower side is at most this much slower, as a share of the other's time: 0.03 is 3 %.
    seen: float  #: The difference that four of five such runs would detect, as a share.
    seconds: tuple[float, float]  #: CPU seconds of a call: each side's median. For the suite: the sum of the medians.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSide:
    """A TensorFlow that was timed."""

    python: str  #: The interpreter's path; for a wheel in a container, the wheel's path.
    version: str  #: The version of the Python; in a container only major and minor: `3.11`.
    tensorflow: str = ""  #: The version of TensorFlow.
    variables: dict[str, str] = field(default_factory=dict)  #: Variables that are set on this side only.

    @property
    def given(self) -> list[str]:
        """The side's variables, each as `NAME=value`."""
        return [f"{name}={value}" for name, value in self.variables.items()]

    @property
    def name(self) -> str:
        """The variables, then the Python or wheel, quoted for a shell."""
        return shlex.join([*self.given, self.python])

    @property
    def title(self) -> str:
        """The version of TensorFlow, and the side's name."""
        return f"tensorflow {self.tensorflow}, {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """`tfdock bench`: whether one installed TensorFlow is faster than another."""

    sides: tuple[TimedSide, TimedSide]  #: Both sides; the baseline is first.
    pairs: int  #: Pairs of processes that were timed.
    load: float  #: The load in the minute before the first pair: how many processes wanted a core.
    operations: tuple[Comparison, ...]  #: Each operation.
    suite: Comparison  #: All operations together.
    notes: tuple[str, ...]  #: What limits the answer.

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Each operation, and then all of them together."""
        return (*self.operations, self.suite)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigure:
    """An operation in one pair of processes: the median of the logarithms, and both sides' medians in seconds."""

    logarithm: float
    seconds: tuple[float, float]


def compare(pairs: Sequence[Mapping[str, PairFigure]]) -> Iterator[Comparison]:
    """Yield the comparison of each operation, then of all operations together. `pairs` has two pairs or more."""
    operations = list(pairs[0])
    for name in operations:
        figures = [pair[name] for pair in pairs]
        first, second = zip(*(figure.seconds for figure in figures), strict=True)
        seconds = (median(first), median(second))
        yield _comparison(name, [figure.logarithm for figure in figures], len(operations), seconds)
    means = [fmean(figure.logarithm for figure in pair.values()) for pair in pairs]
    totals = [sum(median(pair[name].seconds[side] for pair in pairs) for name in operations) for side in (0, 1)]
    yield _comparison(SUITE, means, 1, (totals[0], totals[1]))


def _comparison(name: str, logarithms: Sequence[float], tests: int, seconds: tuple[float, float]) -> Comparison:
    freedom = len(logarithms) - 1
    mean, error = fmean(logarithms), stdev(logarithms) / math.sqrt(len(logarithms))
    # Bonferroni: of many operations one would differ by chance.
    half, surely = (t_quantile(1 - 0.025 / count, freedom) * error for count in (1, tests))
    differs = abs(mean) > surely and abs(math.expm1(mean)) > _MEANT
    return Comparison(
        operation=name,
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        surely_low=math.exp(mean - surely),
        surely_high=math.exp(mean + surely),
        verdict=("faster" if mean < 0 else "slower") if differs else "none",
        excluded=math.expm1(abs(mean) + surely),
        seen=math.expm1(surely + t_quantile(0.8, freedom) * error),
        seconds=seconds,
    )


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's distribution, for a probability of one half or more."""
    low, high = 0.0, 1.0
    while _t_probability(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, freedom) < probability else (low, middle)
    return high


def _t_probability(value: float, freedom: int) -> float:
    """Return the probability of at most this value, which is 0 or more."""
    # With x = tan(angle) * sqrt(freedom) the density is a power of a cosine: smooth, on a bounded interval.
    end = math.atan(value / math.sqrt(freedom))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    step = end / _STEPS
    heights = [math.cos(number * step) ** (freedom - 1) for number in range(_STEPS + 1)]
    return 0.5 + scale * step / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
