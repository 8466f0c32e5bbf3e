"""Differences between systems: paired tests with a correction for their number, intervals and effect sizes.

Tests are over questions, the same for both systems. The randomisation test exchanges the two systems' scores of each
question at random (Smucker, Allan and Carterette, CIKM 2007); with few questions it counts every exchange. Intervals
are percentiles of bootstrap resamples of questions. The correction is Holm's (1979), over all pairs of a measure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from freshstack_dagster.evaluation.results import ALL
from freshstack_dagster.tables import TABLES

ROUNDS = 10_000
LEVEL = 0.95
_CELLS = 4_000_000
"""Numbers held at once by a block of rounds, 32 MB."""

Numbers = npt.NDArray[np.float64]


def compare_systems(
    retrieval_results: pl.DataFrame, *, seed: int = 13, rounds: int = ROUNDS, level: float = LEVEL
) -> pl.DataFrame:
    """Compare every pair of systems on every measure, as the table `comparisons`.

    `retrieval_results` is the table of that name; means are left out, and a pair is compared on the questions that both
    have. The difference is a minus b. The p-value is two-sided, from `rounds` random exchanges (the observed one
    counted among them, so it is never 0) or from all of them where there are no more than that. The effect size is the
    mean difference over its standard deviation, null where differences do not vary. The result depends on the scores
    and the seed only, not on the order of rows.
    """
    scores = retrieval_results.filter(pl.col("question_id") != ALL)
    parts = [
        _compare(str(measure), rows, seed, rounds, level)
        for (measure,), rows in scores.sort("measure").group_by(["measure"], maintain_order=True)
    ]
    table = TABLES["comparisons"]
    return table.conform(pl.concat(parts)) if parts else table.empty()


def holm(p_values: Numbers) -> Numbers:
    """Holm's step-down correction: each p-value times the number of hypotheses not yet rejected, never decreasing."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(p_values.size, 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected


def _compare(measure: str, rows: pl.DataFrame, seed: int, rounds: int, level: float) -> pl.DataFrame:
    wide = rows.pivot("system", index="question_id", values="value").sort("question_id")
    systems = sorted(wide.columns[1:])
    matrix = wide.select(pl.col(systems).cast(pl.Float64())).fill_null(float("nan")).to_numpy()
    first, second = np.triu_indices(len(systems), k=1)
    difference = matrix[:, first] - matrix[:, second]
    present = ~np.isnan(difference)
    difference = np.where(present, difference, 0.0)
    count = present.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = difference.sum(axis=0) / count
        spread = np.sqrt((np.where(present, difference - mean, 0.0) ** 2).sum(axis=0) / (count - 1))
        effect = np.where(spread > 1e-12, mean / spread, np.nan)
    p_value = _randomisation(difference, rounds, seed)
    low, high = _bootstrap(difference, present, rounds, seed, level)
    kinds = rows["judge_kind"].str.split("+").explode().unique().sort()
    names = np.array(systems)
    return pl.DataFrame(
        {
            "measure": pl.repeat(measure, first.size, eager=True, dtype=pl.String()),
            "system_a": pl.Series(names[first].tolist(), dtype=pl.String()),
            "system_b": pl.Series(names[second].tolist(), dtype=pl.String()),
            "questions": count,
            "difference": mean,
            "interval_low": low,
            "interval_high": high,
            "effect_size": pl.Series(effect).fill_nan(None),
            "p_value": p_value,
            "p_corrected": holm(p_value),
            "judge_kind": pl.repeat("+".join(kinds), first.size, eager=True, dtype=pl.String()),
        }
    ).filter(pl.col("questions") > 0)


def _randomisation(difference: Numbers, rounds: int, seed: int) -> Numbers:
    """Two-sided p-value of each column of `difference` (questions × pairs) under random changes of sign."""
    questions, pairs = difference.shape
    observed = np.abs(difference.sum(axis=0))
    # Sums of the same numbers in another order differ in the last bits: equal ones must count.
    edge = observed - 1e-9 * np.maximum(1.0, observed)
    exact = questions < 63 and 2**questions <= rounds
    total = 2**questions if exact else rounds
    at_least = np.zeros(pairs)
    generator = np.random.default_rng(seed)
    step = max(1, _CELLS // max(questions, pairs, 1))
    for start in range(0, total, step):
        size = min(step, total - start)
        if exact:
            bits = (np.arange(start, start + size)[:, None] >> np.arange(questions)) & 1
        else:
            bits = generator.integers(0, 2, size=(size, questions), dtype=np.int8)
        at_least += (np.abs((bits * 2.0 - 1.0) @ difference) >= edge).sum(axis=0)
    return at_least / total if exact else (at_least + 1) / (total + 1)


def _bootstrap(
    difference: Numbers, present: npt.NDArray[np.bool_], rounds: int, seed: int, level: float
) -> tuple[Numbers, Numbers]:
    """Percentile interval of each column's mean over resampled questions."""
    questions, pairs = difference.shape
    if not pairs:
        return np.zeros(0), np.zeros(0)
    generator = np.random.default_rng(seed + 1)
    means = np.empty((rounds, pairs))
    weights_of_present = present.astype(np.float64)
    complete = bool(present.all())
    step = max(1, _CELLS // max(questions, pairs, 1))
    for start in range(0, rounds, step):
        size = min(step, rounds - start)
        drawn = generator.integers(0, questions, size=(size, questions))
        flat = (drawn + np.arange(size)[:, None] * questions).ravel()
        weight = np.bincount(flat, minlength=size * questions).reshape(size, questions).astype(np.float64)
        counted = questions if complete else weight @ weights_of_present
        with np.errstate(invalid="ignore", divide="ignore"):
            means[start : start + size] = (weight @ difference) / counted
    outside = 100 * (1 - level) / 2
    quantile = np.percentile if complete else np.nanpercentile
    low, high = quantile(means, [outside, 100 - outside], axis=0)
    return low, high
