"""What pairs of processes tell: Student's interval, a verdict that is no chance of many operations, its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tfdock.bench.comparison import SUITE, Comparison, PairFigure, compare, t_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    # NIST/SEMATECH e-Handbook, table 1.3.6.7.2.
    [
        (0.975, 1, 12.706),
        (0.99, 3, 4.541),
        (0.975, 5, 2.571),
        (0.975, 11, 2.201),
        (0.995, 23, 2.807),
        (0.9, 30, 1.310),
    ],
)
def test_the_quantiles_are_those_of_tables(probability: float, freedom: int, quantile: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=5e-4)


def compared(**logarithms: Sequence[float]) -> dict[str, Comparison]:
    """The comparisons of operations with these figures, one for each pair."""
    pairs = [
        {
            name: PairFigure(logarithm=one, seconds=(0.002, 0.002 * math.exp(one)))
            for name, one in zip(logarithms, row, strict=True)
        }
        for row in zip(*logarithms.values(), strict=True)
    ]
    return {one.operation: one for one in compare(pairs)}


def test_an_interval_is_that_of_the_mean_over_pairs() -> None:
    # Mean 0.02, deviation 0.02, error 0.01; t is 3.182 for 95 % with three degrees of freedom.
    (one, _) = compared(matmul=[0.0, 0.02, 0.02, 0.04]).values()
    error = math.sqrt((0.02**2 + 0.02**2) / 3) / 2
    assert one.ratio == pytest.approx(math.exp(0.02))
    assert (math.log(one.low), math.log(one.high)) == pytest.approx(
        (0.02 - 3.182 * error, 0.02 + 3.182 * error), abs=1e-4
    )
    assert (one.surely_low, one.surely_high) == (one.low, one.high), "it is the only one"
    assert one.verdict == "none"
    assert one.excluded == pytest.approx(math.expm1(0.02 + 3.182 * error), abs=1e-4)
    # 0.978 is t for four of five runs.
    assert one.seen == pytest.approx(math.expm1((3.182 + 0.978) * error), abs=1e-4)


def test_what_differs_for_sure_and_by_more_than_one_percent_is_told() -> None:
    spread = [0.001, -0.001, 0.002, -0.002, 0.0, 0.0]
    found = compared(
        slower=[0.1 + one for one in spread],
        faster=[-0.1 + one for one in spread],
        little=[0.008 + one for one in spread],
        same=spread,
    )
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts == {"slower": "slower", "faster": "faster", "little": "none", "same": "none", SUITE: "none"}
    assert found["little"].surely_low > 1, "it is known to differ, and nobody cares"


def test_an_operation_among_many_has_to_differ_by_more() -> None:
    figures = [0.01, 0.05, 0.02, 0.06, 0.03, 0.05]
    alone, among = compared(one=figures)["one"], compared(one=figures, **{f"o{n}": figures for n in range(19)})["one"]
    assert (alone.low, alone.high) == (among.low, among.high)
    assert (alone.verdict, among.verdict) == ("slower", "none")
    assert among.surely_low < 1 < alone.surely_low


def test_all_together_is_the_geometric_mean_of_the_operations() -> None:
    found = compared(one=[0.1, 0.12, 0.08], other=[-0.02, 0.0, 0.02])[SUITE]
    assert found.ratio == pytest.approx(math.exp((0.1 + 0.0) / 2))
    assert found.seconds == pytest.approx((0.004, 0.002 * (math.exp(0.1) + 1)))
