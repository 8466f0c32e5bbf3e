"""Do rankings of systems hold from one snapshot to another?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from freshstack_dagster.evaluation.significance import compare_systems, holm
from freshstack_dagster.tables import TABLES

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
RBO_PERSISTENCE = 0.9
TIED = 1e-12
# Shares of what was judged: they tell of the pool, not of the systems.
NOT_RANKED = "judged@"


@dataclass(frozen=True)
class Agreement:
    """Agreement of two score lists over the same systems.

    `tau_b` is Kendall's tau-b; `tie_low` and `tie_high` are the lowest and highest tau that some breaking of the ties
    would give. All are None where they are not defined (fewer than two systems, or one list all tied).
    """

    tau_b: float | None
    tie_low: float | None
    tie_high: float | None
    rbo: float | None


def agreement(first: npt.ArrayLike, second: npt.ArrayLike) -> Agreement:
    """Agreement of two lists of scores, higher is better, a system at the same place in both.

    Where one list is all tied it ranks nothing: then there is no tau-b and no overlap, only the bounds of the ties.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(a) < 2:
        return Agreement(None, None, None, None)
    tau = kendall_tau_b(a, b)
    sign_a, sign_b = _pair_signs(a), _pair_signs(b)
    pairs = sign_a.shape[-1]
    balance = float((sign_a * sign_b).sum())
    tied = float(((sign_a == 0) | (sign_b == 0)).sum())
    low, high = (balance - tied) / pairs, (balance + tied) / pairs
    return Agreement(None, low, high, None) if np.isnan(tau) else Agreement(float(tau), low, high, _rbo(a, b))


def kendall_tau_b(first: Floats, second: Floats) -> Floats:
    """Kendall's tau-b along the last axis; NaN where one list is all tied.

    tau-b = (C - D) / sqrt((n0 - ties in first)(n0 - ties in second)) with n0 pairs (Kendall, 1945).
    """
    sign_a, sign_b = _pair_signs(first), _pair_signs(second)
    untied = np.abs(sign_a).sum(-1) * np.abs(sign_b).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sign_a * sign_b).sum(-1) / np.sqrt(untied)


def _pair_signs(scores: Floats) -> Floats:
    """Which of each pair of systems scores higher: 1, 0 or -1, along the last axis."""
    left, right = np.triu_indices(scores.shape[-1], k=1)
    difference = scores[..., left] - scores[..., right]
    # Means of the same values in another order differ in their last digits.
    return np.where(np.abs(difference) <= TIED, 0.0, np.sign(difference))


def _rbo(first: Floats, second: Floats) -> float:
    """Rank-biased overlap of two full rankings (Webber, Moffat and Zobel 2010, equation 32), ties by place."""
    order_a, order_b = np.argsort(-first, kind="stable"), np.argsort(-second, kind="stable")
    seen_a: set[int] = set()
    seen_b: set[int] = set()
    weighted, overlap = 0.0, 0.0
    for depth, (a, b) in enumerate(zip(order_a.tolist(), order_b.tolist(), strict=True), start=1):
        seen_a.add(a)
        seen_b.add(b)
        overlap = len(seen_a & seen_b) / depth
        weighted += overlap * RBO_PERSISTENCE**depth
    return (1 - RBO_PERSISTENCE) / RBO_PERSISTENCE * weighted + overlap * RBO_PERSISTENCE ** len(order_a)


def ranking_correlation(results: Mapping[str, pl.DataFrame], *, seed: int = 13) -> pl.DataFrame:
    """Compare the ranking of systems between every two snapshots, for each measure.

    In: the table `retrieval_results` by snapshot. Out: the table `ranking_correlation`. A pair is compared on the
    systems and questions that both snapshots have, so that a question that left the benchmark cannot pass for a change
    of the systems. Intervals are 95% percentile bootstraps over those questions and over those systems.
    """
    rows = []
    for earlier, later in combinations(sorted(results), 2):
        for measure in measures_of(results[earlier]):
            both = shared_scores(results[earlier], results[later], measure)
            if both is not None:
                rows.append({"measure": measure, "snapshot_a": earlier, "snapshot_b": later, **_row(both, seed)})
    frame = pl.DataFrame(rows, schema_overrides=TABLES["ranking_correlation"].schema) if rows else None
    return TABLES["ranking_correlation"].empty() if frame is None else TABLES["ranking_correlation"].conform(frame)


@dataclass(frozen=True)
class SharedScores:
    """Scores that two results have in common: systems × questions, before and after, and who judged."""

    systems: tuple[str, ...]
    questions: tuple[str, ...]
    before: Floats
    after: Floats
    judge_kind: str


def measures_of(results: pl.DataFrame) -> list[str]:
    """The measures of `retrieval_results` by which systems are ranked."""
    return [name for name in results["measure"].unique().sort() if not name.startswith(NOT_RANKED)]


def shared_scores(before: pl.DataFrame, after: pl.DataFrame, measure: str) -> SharedScores | None:
    """What two tables `retrieval_results` have in common; None if no system or no question is in both."""
    scores = [_by_system(frame, measure) for frame in (before, after)]
    systems = sorted(set(scores[0].columns[1:]) & set(scores[1].columns[1:]))
    questions = scores[0].select("question_id").join(scores[1], on="question_id", how="semi").sort("question_id")
    if questions.is_empty() or not systems:
        return None
    a, b = (questions.join(frame, on="question_id", how="left").select(systems).to_numpy().T for frame in scores)
    kinds = sorted({*before["judge_kind"].unique(), *after["judge_kind"].unique()})
    return SharedScores(tuple(systems), tuple(questions["question_id"]), a, b, " + ".join(kinds))


def _row(both: SharedScores, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    a, b = both.before.mean(axis=1), both.after.mean(axis=1)
    found = agreement(a, b)
    return {
        "systems": len(both.systems),
        "questions": len(both.questions),
        "tau_b": found.tau_b,
        "tie_low": found.tie_low,
        "tie_high": found.tie_high,
        **_interval("questions", _resample_questions(both.before, both.after, random)),
        **_interval("systems", _resample_systems(a, b, random)),
        "rbo": found.rbo,
        "judge_kind": both.judge_kind,
    }


def tau_with_interval(both: SharedScores, *, seed: int = 13) -> dict[str, float | None]:
    """`tau_b`, its tie bounds and its 95% bootstrap interval over questions."""
    row = _row(both, seed)
    return {name: row[name] for name in ("tau_b", "tie_low", "tie_high", "questions_low", "questions_high")}


def system_drift(results: Mapping[str, pl.DataFrame], *, baseline: str, seed: int = 13) -> pl.DataFrame:
    """How each system's scores changed from the baseline, and from the snapshot before.

    In: the table `retrieval_results` by snapshot; the baseline's month. Out: the table `system_drift`. Tests are paired
    over the questions that both snapshots kept: a randomisation test, and a bootstrap interval of the difference;
    p-values are corrected by Holm over the systems of a measure and pair of months.
    """
    months = sorted(results)
    others = [tuple(sorted((baseline, month))) for month in months if month != baseline]
    pairs = sorted({*others, *pairwise(months)})
    parts = [TABLES["system_drift"].empty()]
    for earlier, later in pairs:
        for measure in measures_of(results[earlier]):
            both = shared_scores(results[earlier], results[later], measure)
            if both is not None:
                parts.append(_changes(both, measure, earlier, later, seed))
    return TABLES["system_drift"].conform(pl.concat(parts))


def _changes(both: SharedScores, measure: str, earlier: str, later: str, seed: int) -> pl.DataFrame:
    # The two months are the two systems to compare, for each system in the place of a measure.
    long = [
        pl.DataFrame({"measure": name, "system": month, "question_id": both.questions, "value": scores})
        for month, side in ((earlier, both.before), (later, both.after))
        for name, scores in zip(both.systems, side, strict=True)
    ]
    tested = compare_systems(pl.concat(long).with_columns(judge_kind=pl.lit(both.judge_kind)), seed=seed)
    means = pl.DataFrame(
        {"system": both.systems, "score_a": both.before.mean(axis=1), "score_b": both.after.mean(axis=1)}
    )
    compared = tested.rename({"measure": "system"}).join(means, on="system")
    return compared.select(
        measure=pl.lit(measure),
        system="system",
        snapshot_a=pl.lit(earlier),
        snapshot_b=pl.lit(later),
        questions="questions",
        score_a="score_a",
        score_b="score_b",
        difference=-pl.col("difference"),
        interval_low=-pl.col("interval_high"),
        interval_high=-pl.col("interval_low"),
        p_value="p_value",
        p_corrected=pl.Series(holm(compared["p_value"].to_numpy())),
        judge_kind=pl.lit(both.judge_kind),
    ).pipe(TABLES["system_drift"].conform)


def _by_system(results: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Scores of each question, a column a system."""
    chosen = results.filter((pl.col("measure") == measure) & (pl.col("question_id") != "all"))
    return chosen.pivot("system", index="question_id", values="value")


def _resample_questions(a: Floats, b: Floats, random: np.random.Generator) -> Floats:
    """tau-b of the means over questions drawn with replacement, the same draw for both snapshots."""
    questions = a.shape[1]
    weights = random.multinomial(questions, np.full(questions, 1 / questions), size=RESAMPLES) / questions
    return kendall_tau_b(weights @ a.T, weights @ b.T)


def _resample_systems(a: Floats, b: Floats, random: np.random.Generator) -> Floats:
    """tau-b over systems drawn with replacement."""
    drawn = random.integers(0, len(a), size=(RESAMPLES, len(a)))
    return kendall_tau_b(a[drawn], b[drawn])


def _interval(name: str, values: Floats) -> dict[str, float | None]:
    values = values[~np.isnan(values)]
    low, high = np.percentile(values, INTERVAL) if len(values) else (None, None)
    return {f"{name}_low": low, f"{name}_high": high}
