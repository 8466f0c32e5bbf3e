"""A judge held against what is known to be true, as it is of the bundled sample.

A truth file names for each question the facts of its answer and, by snapshot, the passages that support each: a file
and an anchor, text that stands in it exactly once. The chunk that holds the anchor supports the fact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.support import ERROR, SUPPORTED
from freshstack_dagster.tables import TABLES

WRITER = "truth"
"""Stands as the model of nuggets that are facts of a truth file."""

_PAIR = ["question_id", "nugget_id", "doc_id"]


@dataclass(frozen=True)
class Agreement:
    """A judge's verdicts against the truth, over pairs of a statement and a chunk.

    `judged` pairs had a verdict, `errors` none. Of the pairs that the truth says are supported, `found` were judged
    supported, `missed` unsupported, and `unjudged` were never put to the judge (they count against the pool, not the
    judge). `invented` were judged supported and are not in the truth.
    """

    judged: int
    errors: int
    found: int
    missed: int
    invented: int
    unjudged: int

    @property
    def precision(self) -> float | None:
        """Share of the supports that are true; null if nothing was judged supported."""
        return _share(self.found, self.invented)

    @property
    def recall(self) -> float | None:
        """Share of the true supports among the judged pairs that the judge saw; null if there are none."""
        return _share(self.found, self.missed)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; null if nothing is supported on either side."""
        return _share(2 * self.found, self.invented + self.missed)

    def figures(self) -> dict[str, float | int | None]:
        """All of it, for a table or a panel."""
        counts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **counts}


def load_truth(path: Path) -> dict[str, Any]:
    """Read a truth file. Raises EvaluationError if it cannot be read or has no questions."""
    try:
        truth = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise EvaluationError(f"{path}: the truth cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(truth, dict) or not isinstance(truth.get("questions"), list):
        raise EvaluationError(f"{path}: a truth file has a list of questions")
    return truth


def facts_as_nuggets(truth: dict[str, Any]) -> pl.DataFrame:
    """The facts of a truth as a table `nuggets`, so that a judge can be measured apart from who writes nuggets."""
    rows = [
        {
            "nugget_id": f"{question['question_id']}_{position}",
            "question_id": str(question["question_id"]),
            "position": position,
            "text": fact["fact"],
            "model": WRITER,
            "prompt": WRITER,
            "reply": None,
        }
        for question in truth["questions"]
        for position, fact in enumerate(question["facts"])
    ]
    return TABLES["nuggets"].conform(pl.DataFrame(rows, schema=TABLES["nuggets"].schema))


def true_support(truth: dict[str, Any], snapshot: str, chunks: pl.DataFrame) -> pl.DataFrame:
    """The pairs that the truth says are supported in a snapshot: question_id, nugget_id (of the fact), doc_id.

    `chunks` is the table of that snapshot. A text that stands in several chunks supports in each of them. Raises
    EvaluationError that names a passage whose anchor no chunk, or more than one text, of its file holds.
    """
    of_file: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for repository, path, text, content_hash in chunks.select("repository", "path", "text", "content_hash").iter_rows():
        of_file.setdefault((repository, path), []).append((text, content_hash))
    rows = []
    for question in truth["questions"]:
        for position, fact in enumerate(question["facts"]):
            for passage in fact.get(snapshot) or []:
                place = (passage["repository"], passage["path"])
                held = {content_hash for text, content_hash in of_file.get(place, []) if passage["anchor"] in text}
                if len(held) != 1:
                    raise EvaluationError(
                        f"{snapshot}: {len(held)} chunks of {'/'.join(place)} hold {passage['anchor']!r}, the passage "
                        f"for fact {position} of question {question['question_id']}; it takes one"
                    )
                rows.append((str(question["question_id"]), f"{question['question_id']}_{position}", held.pop()))
    named = pl.DataFrame(
        rows, schema=["question_id", "nugget_id", "content_hash"], orient="row", infer_schema_length=None
    )
    named = named.cast(dict.fromkeys(named.columns, pl.String()))
    return named.unique().join(chunks.select("doc_id", "content_hash"), on="content_hash").select(_PAIR).sort(_PAIR)


def support_against_truth(judgments: pl.DataFrame, true: pl.DataFrame) -> Agreement:
    """Hold judgments of the facts (`facts_as_nuggets`) against `true_support`, pair by pair.

    The judge is one; an error counts neither for nor against it. The truth names passages, and a chunk may say the same
    in passing: what is `invented` is an upper bound, precision a lower one.
    """
    return _against(judgments.select(*_PAIR, "verdict"), true.with_columns(true=True), _PAIR)


def documents_against_truth(judgments: pl.DataFrame, true: pl.DataFrame) -> Agreement:
    """The same for questions and chunks, whoever wrote the nuggets: does the chunk support any nugget, or any fact?"""
    pair = ["question_id", "doc_id"]
    verdict = (
        pl.when((pl.col("verdict") == SUPPORTED).any())
        .then(pl.lit(SUPPORTED))
        .when((pl.col("verdict") == ERROR).any())
        .then(pl.lit(ERROR))
        .otherwise(pl.lit("unsupported"))
    )
    of_documents = judgments.group_by(pair).agg(verdict.alias("verdict"))
    return _against(of_documents, true.select(pair).unique().with_columns(true=True), pair)


def _against(verdicts: pl.DataFrame, true: pl.DataFrame, pair: list[str]) -> Agreement:
    # Questions that were not judged at all are not of the snapshot.
    true = true.join(verdicts.select("question_id").unique(), on="question_id", how="semi")
    both = verdicts.join(true, on=pair, how="full", coalesce=True).with_columns(pl.col("true").fill_null(False))

    def count(verdict: str, is_true: bool) -> int:
        return both.filter((pl.col("verdict") == verdict) & (pl.col("true") == is_true)).height

    errors = verdicts.filter(pl.col("verdict") == ERROR).height
    return Agreement(
        judged=verdicts.height - errors,
        errors=errors,
        found=count(SUPPORTED, True),
        missed=count("unsupported", True),
        invented=count(SUPPORTED, False),
        unjudged=both["verdict"].null_count(),
    )


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None
