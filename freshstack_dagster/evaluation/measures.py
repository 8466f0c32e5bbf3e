"""Measures of a ranking against nugget qrels, computed over columns.

Every measure reads one order: score descending, then doc_id ascending. All questions and systems of a call are scored
together in NumPy, with one loop over ranks and none over questions or systems.

What each measure counts, for a question at depth k (a document is *relevant* if it supports at least one nugget):

- `alpha_ndcg@k`: alpha-nDCG with alpha 0.5 (Clarke et al., SIGIR 2008), as the program ndeval computes it: the n-th
  document for a nugget gains 0.5^(n-1), discounted by log2(rank + 1) and divided by the gain of a greedy ideal ranking
  that takes, among equals, the greater doc_id. Right at any depth.
- `coverage@k`: share of the nuggets that some document of the top k supports (FreshStack, section 5; ndeval's strec).
  As in ndeval, a nugget that no judged document supports is not counted.
- `recall@k`: share of the relevant documents in the top k. `precision@k`: relevant documents in the top k over k.
- `success@k`: 1 if the top k holds a relevant document. `mrr@k`: 1 over the rank of the first one, 0 beyond k.
- `ndcg@k`: nDCG as trec_eval computes it; a document's gain is the sum of its relevance over nuggets, so the number of
  nuggets it supports, or its grade where qrels have one nugget a question.
- `judged@k`: share of the top k that somebody judged for that question.

Bounds. A *hole* is a retrieved document that the qrels do not list for that question. `lower` takes every hole as not
relevant, which is what `value` does. `upper` is a score that no way of judging the holes down to k can exceed, with
what was not retrieved left as it is:

- coverage, success: 1 if there is a hole, and mrr: 1 over the rank of the first hole or relevant document (reached);
- recall: (hits + holes) / (relevant + holes), the denominator growing with the numerator (reached);
- precision: (hits + holes) / k (reached);
- alpha-nDCG and nDCG: the gain if every hole supported every nugget, over the ideal gain without them, at most 1. An
  ideal only grows with more relevant documents, so this is an upper bound; it need not be reached. (The greedy ideal of
  alpha-nDCG is now and then not the best one, and then scores above 1 exist, in ndeval as here: bounds stop at 1.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from freshstack_dagster.errors import EvaluationError

ALPHA = 0.5
DEFAULT = (
    "alpha_ndcg@10",
    "coverage@20",
    "recall@50",
    "success@10",
    "mrr@10",
    "ndcg@10",
    "judged@10",
)
KINDS = ("alpha_ndcg", "coverage", "recall", "precision", "success", "mrr", "ndcg", "judged")
_ALIASES = {"strec": "coverage", "strecall": "coverage", "r": "recall", "p": "precision", "hit": "success", "rr": "mrr"}

Missing = Literal["error", "zero"]
Numbers = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measure:
    """A measure and its depth; `name` is how tables call it."""

    kind: str
    depth: int

    @property
    def name(self) -> str:
        """The measure's name, such as `alpha_ndcg@10`."""
        return f"{self.kind}@{self.depth}"


def parse_measure(name: str) -> Measure:
    """Read a measure's name: a kind, `@` and a depth; case, hyphens and the usual short names do not matter.

    Raises EvaluationError that lists what is known.
    """
    match = re.fullmatch(r"([a-z_]+)@([1-9]\d*)", name.strip().lower().replace("-", "_"))
    kind = match and _ALIASES.get(match[1], match[1])
    if not match or kind not in KINDS:
        known = ", ".join(f"{kind}@k" for kind in KINDS)
        raise EvaluationError(f"measure {name!r} is not known; known are {known}, such as alpha_ndcg@10")
    return Measure(str(kind), int(match[2]))


class Qrels:
    """Nugget qrels prepared for scoring: ids turned to codes, and what does not depend on a run.

    `qrels` has columns question_id, nugget_id, doc_id and relevance; without nugget_id each question counts as one
    nugget. `judged` (question_id, doc_id) names further documents that were judged and are therefore no holes;
    `unjudged` those on which the verdict on some nugget is missing: of those that support none so far nobody knows
    whether they are relevant, so they are holes after all, and the others may support more than they do.
    Raises EvaluationError on missing columns, nulls, contradicting rows or no rows.
    """

    def __init__(
        self, qrels: pl.DataFrame, judged: pl.DataFrame | None = None, unjudged: pl.DataFrame | None = None
    ) -> None:
        rows = _qrels_rows(qrels)
        names = rows["question_id"].rle().struct.field("value").unique().sort()
        self.questions: pl.Series = names.alias("question_id")
        count = names.len()
        question = _lookup(rows["question_id"], names)
        rows = rows.select(pl.Series("question", question), "nugget_id", "doc_id", "relevance")

        # Qrels come in blocks of a nugget: the first row of each is enough to know the nuggets.
        same = (rows["nugget_id"] == rows["nugget_id"].shift()).fill_null(False).to_numpy()
        heads = np.flatnonzero(~(same & (question == np.append(-1, question[:-1]))))
        nuggets = rows[heads].select("question", "nugget_id").unique().with_row_index("nugget")
        positive = rows.filter(pl.col("relevance") > 0)
        # Descending doc_id, so that the first maximum is the document that ndeval's ideal ranking takes.
        relevant = (
            positive.select("question", "doc_id")
            .unique()
            .sort("question", "doc_id", descending=[False, True])
            .with_row_index("document")
        )
        seen = rows.select("question", "doc_id")
        if judged is not None:
            seen = pl.concat([seen, _of_questions(judged, names)])
        partly = seen.clear() if unjudged is None else _of_questions(unjudged, names).unique()
        #: Every judged document of each question: its place among the relevant ones, -1 if it is not relevant, and
        #: whether it may support more nuggets than are known.
        self.judged = (
            seen.unique()
            .join(relevant, on=["question", "doc_id"], how="left")
            .join(partly.with_columns(partly=pl.lit(True)), on=["question", "doc_id"], how="left")
            .with_columns(pl.col("document").cast(pl.Int64()).fill_null(-1), pl.col("partly").fill_null(False))
            .filter((pl.col("document") >= 0) | ~pl.col("partly"))
        )
        pairs = positive.join(relevant, on=["question", "doc_id"]).join(nuggets, on=["question", "nugget_id"])
        order = np.argsort(_codes(pairs, "document"), kind="stable")
        size = relevant.height
        self.nuggets_of_question = np.bincount(_codes(nuggets, "question"), minlength=count)
        self.nugget_count = nuggets.height
        #: Pairs of a relevant document and a nugget that it supports, sorted by document.
        self.pair_document, self.pair_nugget = _codes(pairs, "document")[order], _codes(pairs, "nugget")[order]
        self.question_of_document = _codes(relevant, "question")
        #: First pair of each document and one beyond the last.
        self.pair_start = np.searchsorted(self.pair_document, np.arange(size + 1))
        relevance = pairs["relevance"].cast(pl.Float64()).to_numpy()[order]
        self.gain = np.bincount(self.pair_document, weights=relevance, minlength=size)
        self.relevant_of_question = np.bincount(self.question_of_document, minlength=count)
        supported = np.zeros(self.nugget_count, dtype=bool)
        supported[self.pair_nugget] = True
        self.supported_of_question = np.bincount(_codes(nuggets, "question")[supported], minlength=count)
        #: The most that a document can gain from a nugget: the highest relevance that the qrels hold.
        self.highest_relevance = float(relevance.max()) if relevance.size else 1.0

    def ideal_ndcg(self, depth: int) -> Numbers:
        """Discounted gain of each question's documents in the best order, down to `depth`."""
        order = np.lexsort((-self.gain, self.question_of_document))
        question = self.question_of_document[order]
        rank = _rank_within(question)
        within = rank <= depth
        return np.bincount(
            question[within], weights=(self.gain[order] * _discount(rank))[within], minlength=len(self.questions)
        )

    def ideal_alpha(self, depth: int) -> Numbers:
        """Discounted gain of each question's greedy ideal ranking, down to `depth`.

        Of equal gains the greatest doc_id is taken, as ndeval does; the gains are sums of powers of two, hence exact.
        """
        ideal = np.zeros(len(self.questions))
        size = self.gain.size
        if not size:
            return ideal
        starts = self.pair_start[:-1]
        active, first = np.unique(self.question_of_document, return_index=True)
        sizes = np.diff(np.append(first, size))
        nuggets = self.pair_nugget
        weight = np.ones(self.nugget_count)
        left = np.ones(size, dtype=bool)
        index = np.arange(size)
        for rank in range(depth):
            gain = np.where(left, np.add.reduceat(weight[nuggets], starts), -1.0)
            best = np.maximum.reduceat(gain, first)
            taken = np.minimum.reduceat(np.where(gain == np.repeat(best, sizes), index, size), first)
            taken, best_gain, of = taken[best > 0], best[best > 0], active[best > 0]
            if not taken.size:
                break
            ideal[of] += best_gain / np.log2(rank + 2)
            left[taken] = False
            begin, end = starts[taken], self.pair_start[taken + 1]
            weight[nuggets[_ranges(begin, end - begin)]] *= 1 - ALPHA
        return ideal


def score_runs(
    qrels: Qrels,
    runs: pl.DataFrame,
    measures: Sequence[str] = DEFAULT,
    *,
    by: Sequence[str] = (),
    missing: Missing = "error",
) -> pl.DataFrame:
    """Score every question of the qrels in every system of `runs`.

    `runs` has columns question_id, doc_id and score (or rank, where there is no score) and the columns `by` that tell
    systems apart. A row without doc_id says that the question's ranking is empty: it scores 0. Questions that the qrels
    lack are left out. Returns `by`, question_id, measure, value, lower, upper and holes (share of the retrieved
    documents down to the measure's depth that nobody judged, null where nothing was retrieved), sorted by system and
    question, measures in the order given.

    Raises EvaluationError for an unknown measure, missing columns, a score that is no number, a document twice in a
    ranking, and, unless `missing` is `zero`, a question of the qrels that a system lacks.
    """
    parsed = [parse_measure(name) for name in dict.fromkeys(measures)]
    if not parsed:
        raise EvaluationError("no measure is named; name at least one, such as alpha_ndcg@10")
    ranking = _Ranking(qrels, runs, tuple(by), max(measure.depth for measure in parsed), missing)
    columns = [ranking.measure(measure) for measure in parsed]
    stacked = [np.stack(part, axis=1).ravel() for part in zip(*columns, strict=True)]
    names = [measure.name for measure in parsed]
    systems, questions = ranking.systems.height, len(qrels.questions)
    frame = pl.DataFrame(
        {
            "question_id": qrels.questions.gather(np.tile(np.repeat(np.arange(questions), len(names)), systems)),
            "measure": pl.Series(names, dtype=pl.String()).gather(np.tile(np.arange(len(names)), systems * questions)),
            "value": stacked[0],
            "lower": stacked[0],
            "upper": stacked[1],
            "holes": pl.Series(stacked[2]).fill_nan(None),
        }
    )
    if not by:
        return frame
    labels = ranking.systems[np.repeat(np.arange(systems), questions * len(names))]
    return pl.concat([labels, frame], how="horizontal")


class _Ranking:
    """The rows of `runs` down to a depth, in order, joined with the qrels; a *group* is a question in a system."""

    def __init__(self, qrels: Qrels, runs: pl.DataFrame, by: tuple[str, ...], depth: int, missing: Missing) -> None:
        self.qrels = qrels
        runs = _run_rows(runs, by)
        self.systems = runs.select(by).unique().sort(by) if by else pl.DataFrame({"system": [""]})
        questions = len(qrels.questions)
        self.groups = self.systems.height * questions

        question = _lookup(runs["question_id"], qrels.questions)
        system = np.zeros(runs.height, dtype=np.int64)
        if by:
            coded = runs.select(by).join(
                self.systems.with_row_index("code"), on=list(by), how="left", maintain_order="left", nulls_equal=True
            )
            system = _codes(coded, "code")
        group = np.where(question >= 0, system * questions + question, -1)
        self._refuse_missing(np.bincount(group[group >= 0], minlength=self.groups) == 0, by, missing)

        has_document = runs["doc_id"].is_not_null().to_numpy()
        if not (has_document.all() and (group >= 0).all()):
            keep = np.flatnonzero(has_document & (group >= 0))
            runs, group = runs[keep], group[keep]
        _refuse_repeated(runs, group)
        self._order(runs.select("doc_id", "score"), group, depth)

    def _refuse_missing(self, absent: npt.NDArray[np.bool_], by: tuple[str, ...], missing: Missing) -> None:
        if missing not in ("error", "zero"):
            raise EvaluationError(f"missing is {missing!r}; use 'error' or 'zero'")
        if missing == "zero" or not absent.any():
            return
        table = absent.reshape(self.systems.height, len(self.qrels.questions))
        system = int(np.flatnonzero(table.any(axis=1))[0])
        names = self.qrels.questions.gather(np.flatnonzero(table[system])).to_list()
        which = f"run {' '.join(map(str, self.systems.row(system)))}" if by else "the run"
        raise EvaluationError(
            f"{which} lacks {len(names)} of {len(self.qrels.questions)} questions of the qrels: {_some(names)}; "
            "rank them (in Parquet a row without doc_id says that nothing was found), or score them 0 (--missing zero)"
        )

    def _order(self, rows: pl.DataFrame, group: Codes, depth: int) -> None:
        score = rows["score"].to_numpy()
        keep = _within_depth(group, score, depth)
        if keep is not None:
            rows, group, score = rows[keep], group[keep], score[keep]
        order = np.lexsort((-score, group))
        group, score = group[order], score[order]
        tied = np.zeros(group.size, dtype=bool)
        tied[1:] = (group[1:] == group[:-1]) & (score[1:] == score[:-1])
        if tied.any():
            # Only tied rows are compared by doc_id: strings are what costs.
            block = np.cumsum(~tied)
            member = tied.copy()
            member[:-1] |= tied[1:]
            place = np.flatnonzero(member)
            ties = pl.DataFrame({"block": block[place], "doc_id": rows["doc_id"].gather(order[place])})
            order[place] = order[place][ties.select(pl.arg_sort_by("block", "doc_id")).to_series().to_numpy()]
        rank = _rank_within(group)
        within = rank <= depth
        order, self.group, self.rank = order[within], group[within], rank[within]

        self.question = self.group % len(self.qrels.questions)
        joined = pl.DataFrame({"question": self.question, "doc_id": rows["doc_id"].gather(order)}).join(
            self.qrels.judged, on=["question", "doc_id"], how="left", maintain_order="left"
        )
        self.hole = joined["document"].is_null().to_numpy()
        self.document = joined["document"].fill_null(-1).to_numpy()
        self.uncertain = self.hole | joined["partly"].fill_null(False).to_numpy()
        self.discount = _discount(self.rank)
        self.relevant = self.document >= 0
        self.gain = np.zeros(self.group.size)
        self.gain[self.relevant] = self.qrels.gain[self.document[self.relevant]]
        self.system = self.group // len(self.qrels.questions)
        self._nuggets()

    def _nuggets(self) -> None:
        """For each row, what it gains over the nuggets it supports, and how many of them it is the first to support."""
        rows = np.flatnonzero(self.relevant)
        document = self.document[rows]
        starts = self.qrels.pair_start
        lengths = starts[document + 1] - starts[document]
        row = np.repeat(rows, lengths)
        key = self.system[row] * self.qrels.nugget_count + self.qrels.pair_nugget[_ranges(starts[document], lengths)]
        order = np.argsort(key, kind="stable")
        earlier = np.empty(key.size, dtype=np.int64)
        earlier[order] = _rank_within(key[order]) - 1
        gain = (1 - ALPHA) ** earlier.astype(np.float64)
        self.novelty = np.bincount(row, weights=gain, minlength=self.group.size)
        self.first_support = np.bincount(row[earlier == 0], minlength=self.group.size).astype(np.float64)

    def measure(self, measure: Measure) -> tuple[Numbers, Numbers, Numbers]:
        """Value, upper bound and share of holes of every group."""
        within = self.rank <= measure.depth
        retrieved, holes = self._sum(within), self._sum(within & self.hole)
        with np.errstate(invalid="ignore"):
            share = holes / retrieved
        value, upper = getattr(self, f"_{measure.kind}")(measure.depth, within, holes)
        return value, np.maximum(value, np.minimum(upper, 1.0)), share

    def _sum(self, rows: npt.NDArray[np.bool_], weights: Numbers | None = None) -> Numbers:
        kept = None if weights is None else weights[rows]
        return np.bincount(self.group[rows], weights=kept, minlength=self.groups).astype(np.float64)

    def _of_question(self, values: npt.NDArray[Any]) -> Numbers:
        return np.tile(values.astype(np.float64), self.systems.height)

    def _alpha_ndcg(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        ideal = self._of_question(self.qrels.ideal_alpha(depth))
        value = _ratio(self._sum(within, self.novelty * self.discount), ideal)
        # Each hole supporting every nugget halves what later documents gain, and itself gains what is left of each
        # nugget: all of it at first, less ALPHA of every gain so far.
        decay = (1 - ALPHA) ** _sum_before(self.group, self.hole.astype(np.float64))
        left = self._of_question(self.qrels.nuggets_of_question)[self.group] - ALPHA * _sum_before(
            self.group, self.novelty
        )
        best = np.where(self.uncertain, left, self.novelty) * decay
        uncertain = self._sum(within & self.uncertain)
        return value, _bound(self._sum(within, best * self.discount), ideal, uncertain, value)

    def _coverage(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        value = _ratio(self._sum(within, self.first_support), self._of_question(self.qrels.supported_of_question))
        return value, np.where(self._sum(within & self.uncertain) > 0, 1.0, value)

    def _recall(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        hits = self._sum(within & self.relevant)
        relevant = self._of_question(self.qrels.relevant_of_question)
        return _ratio(hits, relevant), _ratio(hits + holes, relevant + holes)

    def _precision(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        hits = self._sum(within & self.relevant)
        return hits / depth, (hits + holes) / depth

    def _success(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        hits = self._sum(within & self.relevant)
        return (hits > 0).astype(np.float64), (hits + holes > 0).astype(np.float64)

    def _mrr(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        return self._reciprocal(within & self.relevant), self._reciprocal(within & (self.relevant | self.hole))

    def _reciprocal(self, rows: npt.NDArray[np.bool_]) -> Numbers:
        best = np.zeros(self.groups)
        np.maximum.at(best, self.group[rows], 1.0 / self.rank[rows])
        return best

    def _ndcg(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        ideal = self._of_question(self.qrels.ideal_ndcg(depth))
        value = _ratio(self._sum(within, self.gain * self.discount), ideal)
        most = self._of_question(self.qrels.nuggets_of_question) * self.qrels.highest_relevance
        best = np.where(self.uncertain, most[self.group], self.gain)
        uncertain = self._sum(within & self.uncertain)
        return value, _bound(self._sum(within, best * self.discount), ideal, uncertain, value)

    def _judged(self, depth: int, within: npt.NDArray[np.bool_], holes: Numbers) -> tuple[Numbers, Numbers]:
        retrieved = self._sum(within)
        value = _ratio(retrieved - holes, retrieved)
        return value, value


def _of_questions(documents: pl.DataFrame, questions: pl.Series) -> pl.DataFrame:
    """Documents (question_id, doc_id) of these questions, the question as its code."""
    question = _lookup(documents["question_id"].cast(pl.String()), questions)
    coded = pl.DataFrame({"question": question, "doc_id": documents["doc_id"].cast(pl.String())})
    return coded.filter(pl.col("question") >= 0)


def _qrels_rows(qrels: pl.DataFrame) -> pl.DataFrame:
    if "nugget_id" not in qrels.columns and "question_id" in qrels.columns:
        qrels = qrels.with_columns(nugget_id=pl.col("question_id"))
    ids = ["question_id", "nugget_id", "doc_id"]
    _require(qrels, [*ids, "relevance"], "qrels")
    try:
        rows = qrels.select(pl.col(ids).cast(pl.String()), pl.col("relevance").cast(pl.Int64()))
    except pl.exceptions.PolarsError as error:
        raise EvaluationError(f"qrels: {str(error).splitlines()[0]}") from error
    if not rows.height:
        raise EvaluationError("qrels hold no rows, so there is nothing to score against")
    for name in rows.columns:
        if rows[name].null_count():
            raise EvaluationError(f"qrels: column {name} has {rows[name].null_count()} nulls")
    if qrels["relevance"].dtype.is_float() and (qrels["relevance"] != rows["relevance"]).any():
        raise EvaluationError("qrels: column relevance holds fractions; grades are whole numbers")
    if not _repeats(_mix(_mix(rows["question_id"].hash(1), rows["nugget_id"].hash(2)), rows["doc_id"].hash(3))):
        return rows
    rows = rows.unique()
    contradicting = rows.filter(pl.struct(ids).is_duplicated())
    if contradicting.height:
        _, nugget, document = contradicting.sort(ids).select(ids).row(0)
        raise EvaluationError(f"qrels: nugget {nugget} and document {document} have more than one relevance")
    return rows


def _run_rows(runs: pl.DataFrame, by: tuple[str, ...]) -> pl.DataFrame:
    if "score" not in runs.columns and "rank" in runs.columns:
        runs = runs.with_columns(score=-pl.col("rank").cast(pl.Float64()))
    _require(runs, [*by, "question_id", "doc_id", "score"], "run")
    try:
        rows = runs.select(*by, pl.col("question_id", "doc_id").cast(pl.String()), pl.col("score").cast(pl.Float64()))
    except pl.exceptions.PolarsError as error:
        raise EvaluationError(f"run: {str(error).splitlines()[0]}") from error
    if rows["question_id"].null_count():
        raise EvaluationError(f"run: {rows['question_id'].null_count()} rows have no question_id")
    wrong = pl.col("doc_id").is_not_null() & (pl.col("score").is_null() | pl.col("score").is_nan())
    if rows["score"].null_count() or rows["score"].is_nan().any():
        faults = rows.filter(wrong)
        if faults.height:
            question, document = faults.select("question_id", "doc_id").row(0)
            raise EvaluationError(
                f"run: question {question}, document {document}: the score is no number ({faults.height} such rows)"
            )
    return rows


def _require(frame: pl.DataFrame, columns: Sequence[str], what: str) -> None:
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise EvaluationError(f"{what}: missing columns {', '.join(absent)}; found {', '.join(frame.columns)}")


def _refuse_repeated(runs: pl.DataFrame, group: Codes) -> None:
    """Refuse a document that stands twice in a ranking: which of its ranks counts would be a guess."""
    if not _repeats(_mix(pl.Series(group), runs["doc_id"].hash(1))):
        return
    rows = runs.with_columns(group=pl.Series(group))
    repeated = rows.filter(pl.struct("group", "doc_id").is_duplicated()).sort("question_id", "doc_id")
    if repeated.height:
        question, document = repeated.select("question_id", "doc_id").row(0)
        count = repeated.select("group", "doc_id").n_unique()
        raise EvaluationError(
            f"run: question {question} lists document {document} twice ({count} such documents in all); "
            "a ranking lists a document once"
        )


def _mix(first: pl.Series, second: pl.Series) -> pl.Series:
    """One 64-bit key for two columns of numbers."""
    key = first.to_numpy().astype(np.uint64)
    key *= np.uint64(0x9E3779B97F4A7C15)
    key ^= second.to_numpy()
    return pl.Series(key)


def _repeats(keys: pl.Series) -> bool:
    """Whether a key stands twice. Sorting keys is far cheaper than grouping ids; who finds one compares the ids."""
    ordered = keys.sort().to_numpy()
    return bool((ordered[1:] == ordered[:-1]).any())


def _within_depth(group: Codes, score: Numbers, depth: int) -> Codes | None:
    """Rows that can stand in the top `depth` of their group, with all that tie at its edge; None for every row."""
    if group.size == 0 or np.bincount(group).max() <= depth:
        return None
    grouped = bool((group[1:] >= group[:-1]).all())
    falling = grouped and bool(((score[1:] <= score[:-1]) | (group[1:] != group[:-1])).all())
    lowest = np.full(int(group.max()) + 1, -np.inf)
    if falling:
        start = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        size = np.diff(np.append(start, group.size))
        deep = size > depth
        lowest[group[start[deep]]] = score[start[deep] + depth - 1]
    else:
        edge = (
            pl.DataFrame({"group": group, "score": score})
            .group_by("group")
            .agg(pl.col("score").top_k(depth).min(), pl.len())
            .filter(pl.col("len") > depth)
        )
        lowest[edge["group"].to_numpy()] = edge["score"].to_numpy()
    return np.flatnonzero(score >= lowest[group])


def _lookup(values: pl.Series, known: pl.Series) -> Codes:
    """Place of each value in `known`, -1 where it is not; by runs of equal values, since rankings come in blocks."""
    runs = values.rle().struct.unnest()
    codes = pl.DataFrame({"value": known}).with_row_index("code")
    found = runs.join(codes, on="value", how="left", maintain_order="left")
    return np.repeat(found["code"].cast(pl.Int64()).fill_null(-1).to_numpy(), found["len"].to_numpy())


def _codes(frame: pl.DataFrame, column: str) -> Codes:
    return frame[column].cast(pl.Int64()).to_numpy()


def _rank_within(sorted_keys: Codes) -> Codes:
    """Rank of each row in its block of equal keys, from 1."""
    if not sorted_keys.size:
        return np.zeros(0, dtype=np.int64)
    index = np.arange(sorted_keys.size)
    start = np.append(True, sorted_keys[1:] != sorted_keys[:-1])
    return index - np.maximum.accumulate(np.where(start, index, 0)) + 1


def _sum_before(group: Codes, values: Numbers) -> Numbers:
    """Sum of the values of earlier rows of the same group, for each row."""
    if not group.size:
        return np.zeros(0)
    before = np.cumsum(values) - values
    start = np.append(True, group[1:] != group[:-1])
    sizes = np.diff(np.append(np.flatnonzero(start), group.size))
    return before - np.repeat(before[start], sizes)


def _ranges(starts: Codes, lengths: Codes) -> Codes:
    """Concatenation of the ranges that begin at `starts` with these `lengths`."""
    total = int(lengths.sum())
    if not total:
        return np.zeros(0, dtype=np.int64)
    return np.repeat(starts - np.append(0, np.cumsum(lengths)[:-1]), lengths) + np.arange(total)


def _discount(rank: Codes) -> Numbers:
    return 1.0 / np.log2(rank + 1)


def _ratio(numerator: Numbers, denominator: Numbers) -> Numbers:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _bound(best: Numbers, ideal: Numbers, uncertain: Numbers, value: Numbers) -> Numbers:
    """Best gain over the ideal gain, 1 where a hole makes the only ideal there is, and the value where all is known."""
    possible = np.divide(best, ideal, out=np.ones_like(best), where=ideal > 0)
    return np.where(uncertain > 0, possible, value)


def _some(names: Sequence[str], shown: int = 5) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
