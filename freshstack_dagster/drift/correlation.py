"""Do rankings of systems hold from one snapshot to another?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from freshstack_dagster.tables import TABLES

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
RBO_PERSISTENCE = 0.9


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
    """Agreement of two lists of scores, higher is better, a system at the same place in both."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(a) < 2:
        return Agreement(None, None, None, None)
    tau = kendall_tau_b(a, b)
    sign_a, sign_b = _pair_signs(a), _pair_signs(b)
    pairs = sign_a.shape[-1]
    balance = float((sign_a * sign_b).sum())
    tied = float(((sign_a == 0) | (sign_b == 0)).sum())
    return Agreement(
        None if np.isnan(tau) else float(tau), (balance - tied) / pairs, (balance + tied) / pairs, _rbo(a, b)
    )


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
    return np.sign(scores[..., left] - scores[..., right])


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
        for measure in results[earlier]["measure"].unique().sort():
            row = _compare(results[earlier], results[later], measure, seed)
            if row is not None:
                rows.append({"measure": measure, "snapshot_a": earlier, "snapshot_b": later, **row})
    frame = pl.DataFrame(rows, schema_overrides=TABLES["ranking_correlation"].schema) if rows else None
    return TABLES["ranking_correlation"].empty() if frame is None else TABLES["ranking_correlation"].conform(frame)


def _compare(earlier: pl.DataFrame, later: pl.DataFrame, measure: str, seed: int) -> dict[str, Any] | None:
    scores = [_by_system(frame, measure) for frame in (earlier, later)]
    systems = sorted(set(scores[0].columns[1:]) & set(scores[1].columns[1:]))
    questions = scores[0].select("question_id").join(scores[1], on="question_id", how="semi").sort("question_id")
    if questions.is_empty() or not systems:
        return None
    a, b = (questions.join(frame, on="question_id", how="left").select(systems).to_numpy().T for frame in scores)
    random = np.random.default_rng(seed)
    found = agreement(a.mean(axis=1), b.mean(axis=1))
    kinds = sorted({*earlier["judge_kind"].unique(), *later["judge_kind"].unique()})
    return {
        "systems": len(systems),
        "questions": questions.height,
        "tau_b": found.tau_b,
        "tie_low": found.tie_low,
        "tie_high": found.tie_high,
        **_interval("questions", _resample_questions(a, b, random)),
        **_interval("systems", _resample_systems(a.mean(axis=1), b.mean(axis=1), random)),
        "rbo": found.rbo,
        "judge_kind": " + ".join(kinds),
    }


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
