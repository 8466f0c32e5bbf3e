"""Agreement of judges: in pairs (Cohen's kappa), all together (Fleiss' kappa), where they part, and by majority.

A judge's verdict counts where it is `supported` or `unsupported`; an error is no verdict, and the pairs it leaves out
are counted. Kappa without its base rates misleads: where one pair in fifty is supported, chance alone makes judges
agree on 96%. Intervals are percentiles of a bootstrap over questions: the pairs of a question are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.tables import TABLES

RESAMPLES = 2_000
MAJORITY = "majority"

_ITEM = ["question_id", "nugget_id", "doc_id"]
_PAIRWISE = pl.Schema(
    {
        "judge_a": pl.String(),
        "judge_b": pl.String(),
        "judge_kind_a": pl.String(),
        "judge_kind_b": pl.String(),
        "pairs": pl.Int64(),
        "left_out": pl.Int64(),
        "agreement": pl.Float64(),
        "agreement_low": pl.Float64(),
        "agreement_high": pl.Float64(),
        "kappa": pl.Float64(),
        "kappa_low": pl.Float64(),
        "kappa_high": pl.Float64(),
        "base_rate_a": pl.Float64(),
        "base_rate_b": pl.Float64(),
    }
)


def pairwise_agreement(judgments: pl.DataFrame, *, seed: int = 13, resamples: int = RESAMPLES) -> pl.DataFrame:
    """Agreement of each two judges that stand in a table of judgments.

    Returns a row for each two judges, by name: `pairs` (nugget and chunk) both gave a verdict on, `left_out` that both
    were asked about but one or both failed on, `agreement` (share of equal verdicts), `kappa` (Cohen 1960; null where
    chance alone gives full agreement), their 95% intervals, and each one's `base_rate` (share of supported).
    """
    table = _verdicts(judgments)
    kinds = dict(judgments.select("judge", "judge_kind").unique().sort("judge").iter_rows())
    rows = []
    for a, b in combinations(sorted(kinds), 2):
        asked = table.filter(pl.col(a).is_not_null() & pl.col(b).is_not_null())
        both = asked.filter((pl.col(a) >= 0) & (pl.col(b) >= 0))
        cells = _by_question(
            both.select(
                "question_id",
                both=((pl.col(a) == 1) & (pl.col(b) == 1)).cast(pl.Int64),
                only_a=((pl.col(a) == 1) & (pl.col(b) == 0)).cast(pl.Int64),
                only_b=((pl.col(a) == 0) & (pl.col(b) == 1)).cast(pl.Int64),
                neither=((pl.col(a) == 0) & (pl.col(b) == 0)).cast(pl.Int64),
            )
        )
        agreement = _with_interval(cells, _agreement, seed, resamples)
        kappa = _with_interval(cells, _cohen, seed, resamples)
        counts = cells.sum(axis=0)
        rates = (counts[0] + counts[1], counts[0] + counts[2])
        rows.append(
            [a, b, kinds[a], kinds[b], both.height, asked.height - both.height, *agreement, *kappa]
            + [float(rate / both.height) if both.height else None for rate in rates]
        )
    return pl.DataFrame(rows, schema=_PAIRWISE, orient="row")


def fleiss_agreement(judgments: pl.DataFrame, *, seed: int = 13, resamples: int = RESAMPLES) -> pl.DataFrame:
    """Agreement of all judges of a table of judgments together.

    Returns one row: `judges`, `pairs` (nugget and chunk) on which every judge gave a verdict, `left_out` (the others),
    `agreement` (mean share of agreeing pairs of judges), `kappa` (Fleiss 1971) with its 95% interval, and `base_rate`
    (share of supported over all verdicts). Without two judges or a pair that all judged, the figures are null.
    """
    table = _verdicts(judgments)
    judges = [name for name in table.columns if name not in _ITEM]
    full = table.filter(pl.all_horizontal(pl.col(judges).is_not_null() & (pl.col(judges) >= 0))) if judges else table
    count = len(judges)
    supported = pl.sum_horizontal(judges) if judges else pl.lit(0)
    agreeing = supported * (supported - 1) + (count - supported) * (count - supported - 1)
    cells = _by_question(full.select("question_id", pairs=pl.lit(1), supported=supported, agreeing=agreeing))

    def agreement(sums: np.ndarray) -> np.ndarray:
        return _divide(sums[:, 2], sums[:, 0] * count * (count - 1))

    def kappa(sums: np.ndarray) -> np.ndarray:
        rate = _divide(sums[:, 1], sums[:, 0] * count)
        chance = rate**2 + (1 - rate) ** 2
        return _divide(agreement(sums) - chance, 1 - chance)

    sums = cells.sum(axis=0)
    row = [
        count,
        full.height,
        table.height - full.height,
        *_with_interval(cells, agreement, seed, resamples),
        *_with_interval(cells, kappa, seed, resamples),
        float(sums[1] / (sums[0] * count)) if sums[0] else None,
    ]
    names = ["agreement", "agreement_low", "agreement_high", "kappa", "kappa_low", "kappa_high", "base_rate"]
    schema = {name: pl.Int64() for name in ("judges", "pairs", "left_out")} | {name: pl.Float64() for name in names}
    return pl.DataFrame([row], schema=schema, orient="row")


def disagreements(judgments: pl.DataFrame) -> pl.DataFrame:
    """The pairs on which judges part, for people to read: most divided first, then by id.

    Columns: question_id, nugget_id, doc_id, `supported` and `unsupported` (judges by verdict, sorted) and `reasons`
    (judge, verdict, reason and quote of each).
    """
    given = judgments.filter(pl.col("verdict") != "error").sort("judge")
    divided = given.group_by(_ITEM).agg(
        supported=pl.col("judge").filter(pl.col("verdict") == "supported"),
        unsupported=pl.col("judge").filter(pl.col("verdict") == "unsupported"),
        reasons=pl.struct("judge", "verdict", "reason", "quote"),
    )
    fewer = pl.min_horizontal(pl.col("supported").list.len(), pl.col("unsupported").list.len())
    return divided.filter(fewer > 0).sort(-fewer.cast(pl.Int64), *_ITEM)


def majority_verdict(judgments: pl.DataFrame, *, judge: str = MAJORITY) -> pl.DataFrame:
    """The verdict that most judges give each pair, as rows of the table `judgments` under the name `judge`.

    Only verdicts count; where as many say supported as unsupported, or none says anything, the verdict is `error`,
    because a tie is not knowledge. The quote is one of the majority's that stands in the chunk, if any. `judge_kind` is
    the weakest among the judges (heuristic, then llm, then human). Raises EvaluationError where judges read different
    texts for the same pair.
    """
    columns = TABLES["judgments"].schema
    if differing := (
        judgments.group_by("nugget_id", "doc_id")
        .agg(pl.col("content_hash", "nugget_hash").n_unique())
        .filter((pl.col("content_hash") > 1) | (pl.col("nugget_hash") > 1))
        .sort("nugget_id", "doc_id")
        .select("nugget_id", "doc_id")
        .rows()
    ):
        raise EvaluationError(
            f"judges read different texts for nugget {differing[0][0]} and {differing[0][1]}; judge them again"
        )
    for_it, against = (pl.col("verdict") == "supported").sum(), (pl.col("verdict") == "unsupported").sum()
    # A quote that is found before one that is not, then by judge, so that the choice is the same every time.
    ordered = judgments.sort(pl.col("quote_found").fill_null(False), "judge", descending=[True, False])
    kinds = set(judgments["judge_kind"])
    kind = next((name for name in ("heuristic", "llm", "human") if name in kinds), "llm")
    prompt = ", ".join(sorted({f"{name}:{version}" for name, version in judgments.select("judge", "prompt").rows()}))
    votes = ordered.group_by(*_ITEM, "nugget_hash", "content_hash").agg(
        verdict=pl.when(for_it > against)
        .then(pl.lit("supported"))
        .when(against > for_it)
        .then(pl.lit("unsupported"))
        .otherwise(pl.lit("error")),
        reason=pl.format(
            "{} supported, {} unsupported, {} errors", for_it, against, (pl.col("verdict") == "error").sum()
        ),
        quote=pl.col("quote").filter(pl.col("verdict") == "supported").first(),
        quote_found=pl.col("quote_found").filter(pl.col("verdict") == "supported").first(),
    )
    won = pl.col("verdict") == "supported"
    return TABLES["judgments"].conform(
        votes.with_columns(
            quote=pl.when(won).then("quote"),
            quote_found=pl.when(won).then("quote_found"),
            judge=pl.lit(judge),
            judge_kind=pl.lit(kind),
            prompt=pl.lit(prompt),
            reply=pl.lit(None, dtype=pl.String()),
            carried_from=pl.lit(None, dtype=pl.String()),
        ).select(columns.names())
    )


def _verdicts(judgments: pl.DataFrame) -> pl.DataFrame:
    """A row for each nugget and chunk, a column for each judge: 1 supported, 0 unsupported, -1 error."""
    coded = pl.col("verdict").replace_strict({"supported": 1, "unsupported": 0, "error": -1}, return_dtype=pl.Int64())
    return (
        judgments.select(*_ITEM, "judge", coded.alias("code"))
        .sort("judge")
        .pivot("judge", index=_ITEM, values="code")
        .sort(_ITEM)
    )


def _by_question(frame: pl.DataFrame) -> np.ndarray:
    """Counts of each question (rows); of each pair if there is one question, to have something to resample."""
    if frame["question_id"].n_unique() > 1:
        frame = frame.group_by("question_id").agg(pl.all().sum()).sort("question_id")
    return frame.drop("question_id").to_numpy().astype(float)


def _with_interval(
    cells: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int, resamples: int
) -> tuple[float | None, float | None, float | None]:
    """A statistic of summed counts and its 95% bootstrap interval over the rows; nulls where it has no value."""
    if not len(cells):
        return None, None, None
    value = float(statistic(cells.sum(axis=0, keepdims=True))[0])
    if np.isnan(value):
        return None, None, None
    random = np.random.default_rng(seed)
    drawn = np.concatenate(
        [
            statistic(random.multinomial(len(cells), np.full(len(cells), 1 / len(cells)), size=size) @ cells)
            for size in _portions(resamples, len(cells))
        ]
    )
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return value, None, None
    low, high = np.percentile(drawn, [2.5, 97.5])
    return value, float(low), float(high)


def _portions(resamples: int, rows: int) -> list[int]:
    """Resamples in portions whose weights fit into some 40 MB."""
    size = max(1, min(resamples, 5_000_000 // rows))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def _agreement(counts: np.ndarray) -> np.ndarray:
    return _divide(counts[:, 0] + counts[:, 3], counts.sum(axis=1))


def _cohen(counts: np.ndarray) -> np.ndarray:
    """Cohen's kappa of counts: both, only the first, only the second, neither."""
    total = counts.sum(axis=1)
    a, b = _divide(counts[:, 0] + counts[:, 1], total), _divide(counts[:, 0] + counts[:, 2], total)
    chance = a * b + (1 - a) * (1 - b)
    return _divide(_agreement(counts) - chance, 1 - chance)


def _divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients, NaN where the divisor is zero (or no more than a rounding error above it)."""
    fits = below > 1e-12
    return np.where(fits, above / np.where(fits, below, 1.0), np.nan)
