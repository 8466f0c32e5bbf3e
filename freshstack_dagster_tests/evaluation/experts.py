"""What an expert says of nuggets and judgments, as FreshStack's Table 5 counts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freshstack_dagster.errors import EvaluationError

LABELS = ("relevant", "partially_relevant", "non_relevant")


def nugget_quality(nuggets: int, *, correct: int, grounded: int, missed: int) -> dict[str, float | None]:
    """Quality of nuggets from an expert's counts, in percent (FreshStack, Table 5); null over nothing.

    Of `nuggets` written, `correct` state a fact that answers the question and `grounded` stand in the answer; `missed`
    facts of the answers are in no nugget. Precision is correct over written, recall is correct over correct and missed,
    groundedness is grounded over written. Raises EvaluationError for counts that cannot be.
    """
    if min(nuggets, correct, grounded, missed) < 0 or max(correct, grounded) > nuggets:
        raise EvaluationError(
            f"of {nuggets} nuggets, {correct} correct, {grounded} grounded, {missed} missed: cannot be"
        )
    return {
        "nugget_precision": _percent(correct, nuggets),
        "nugget_recall": _percent(correct, correct + missed),
        "nugget_groundedness": _percent(grounded, nuggets),
    }


def judgment_quality(labels: Sequence[str] | Mapping[str, int]) -> dict[str, float | None]:
    """Shares of an expert's labels of judged chunks, in percent (FreshStack, Table 5): they sum to 100.

    `labels` are words of `LABELS`, or their counts. Raises EvaluationError that names an unknown one.
    """
    counts = (
        dict(labels) if isinstance(labels, Mapping) else {name: labels.count(name) for name in dict.fromkeys(labels)}
    )
    if unknown := [name for name in counts if name not in LABELS]:
        raise EvaluationError(f"label {unknown[0]!r} is not known; use {', '.join(LABELS)}")
    total = sum(counts.values())
    return {f"judgment_{name}": _percent(counts.get(name, 0), total) for name in LABELS}


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
