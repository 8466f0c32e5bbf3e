"""Every table's schema, once.

A table is a set of Parquet files in the lake, partitioned by topic and for some tables by snapshot. The partition
columns are not repeated inside the files. `TABLES` is what the lake, the asset metadata, the checks and the
documentation are made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from freshstack_dagster.errors import SchemaError

TEXT = pl.String()
COUNT = pl.Int64()
NUMBER = pl.Float64()
FLAG = pl.Boolean()
TIME = pl.Datetime("us", "UTC")
REASONS = pl.List(pl.Struct({"judge": TEXT, "verdict": TEXT, "reason": TEXT, "quote": TEXT}))
FOUND_BY = pl.List(pl.Struct({"variant": pl.String(), "retriever": pl.String(), "rank": pl.Int64()}))

_Columns = dict[str, tuple[pl.DataType, str] | tuple[pl.DataType, str, bool]]

TOPIC = ("topic",)
TOPIC_SNAPSHOT = ("topic", "snapshot")


@dataclass(frozen=True)
class Column:
    """One column: its type, what it holds (with its unit) and whether it may be null."""

    dtype: pl.DataType
    description: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A table's contract.

    `by` names the partition dimensions, `key` the columns that identify a row in its partition, `order` the columns
    that rows are sorted by when written, so that equal content is equal bytes.
    """

    name: str
    by: tuple[str, ...]
    description: str
    columns: Mapping[str, Column]
    key: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def schema(self) -> pl.Schema:
        """Column names and polars types, in order."""
        return pl.Schema({name: column.dtype for name, column in self.columns.items()})

    def empty(self) -> pl.DataFrame:
        """A frame with the table's columns and no rows."""
        return pl.DataFrame(schema=self.schema)

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with exactly the table's columns, types and row order.

        Raises SchemaError that names missing or unknown columns, values that do not fit, nulls where none may be,
        and the first repeated keys.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in self.columns]
        if missing or unknown:
            raise SchemaError(f"table {self.name}: missing columns {missing}, unknown columns {unknown}")
        for name, column in self.columns.items():
            if frame[name].dtype.is_float():
                if frame[name].is_nan().any():
                    raise SchemaError(f"table {self.name}: column {name} holds NaN; what is not known is null")
                if column.dtype.is_integer() and (frame[name] != frame[name].floor()).any():
                    raise SchemaError(f"table {self.name}: column {name} holds numbers that are not whole")
        try:
            frame = frame.select(pl.col(name).cast(column.dtype) for name, column in self.columns.items())
        except pl.exceptions.PolarsError as error:
            raise SchemaError(f"table {self.name}: a column does not fit its type: {_first_line(error)}") from error
        for name, column in self.columns.items():
            if not column.nullable and frame[name].null_count():
                raise SchemaError(f"table {self.name}: column {name} has {frame[name].null_count()} nulls")
        if self.key:
            repeated = frame.filter(pl.struct(self.key).is_duplicated()).select(self.key).unique(maintain_order=True)
            if repeated.height:
                raise SchemaError(f"table {self.name}: repeated key {self.key}: {repeated.head(3).rows()}")
        return frame.sort(self.order, maintain_order=True) if self.order else frame


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _table(
    name: str,
    by: tuple[str, ...],
    description: str,
    key: tuple[str, ...],
    columns: _Columns,
    order: tuple[str, ...] | None = None,
) -> Table:
    return Table(
        name=name,
        by=by,
        description=description,
        columns={column: Column(*spec) for column, spec in columns.items()},
        key=key,
        order=key if order is None else order,
    )


_QUESTION = (TEXT, "id of the question in its source")
_NUGGET = (TEXT, "`{question_id}_{position}`")
_DOC = (TEXT, "`{repository alias}/{path}_{start}_{end}`")
_JUDGE_KIND = (TEXT, "who judged: llm, heuristic or human")
_MODEL = (TEXT, "provider and model that wrote it, `heuristic` for the embedded default")
_PROMPT = (TEXT, "version of the prompt: a hash of its text")
_REPLY = (TEXT, "key of the reply in the cache, null where no model was called", True)
_MEASURE = (TEXT, "measure by its name in the field, such as alpha_ndcg@10")
_HOLES = (NUMBER, "share of the retrieved documents, down to the measure's depth, that nobody judged", True)
_JUDGMENT: _Columns = {
    "question_id": _QUESTION,
    "nugget_id": _NUGGET,
    "doc_id": _DOC,
    "content_hash": (TEXT, "hash of the chunk's text that was judged"),
    "nugget_hash": (TEXT, "sha256 of the nugget's text, so that a reworded nugget is judged again"),
    "verdict": (TEXT, "supported, unsupported or error; an error is unjudged in every measure"),
    "reason": (TEXT, "the judge's reason, or the error"),
    "quote": (TEXT, "words of the chunk that support the nugget", True),
    "quote_found": (FLAG, "whether the quote stands in the chunk, null without a quote", True),
    "judge": (TEXT, "provider and model"),
    "judge_kind": _JUDGE_KIND,
    "prompt": _PROMPT,
    "reply": _REPLY,
    "carried_from": (TEXT, "snapshot the verdict was carried over from, null if judged here", True),
}
_ANSWER_JUDGMENT: _Columns = {
    **_JUDGMENT,
    "doc_id": (TEXT, "`{system}/{question_id}`"),
    "content_hash": (TEXT, "hash of the answer's text that was judged"),
    "carried_from": (TEXT, "always null: answers belong to no snapshot", True),
}
_JUDGMENT_ORDER = ("question_id", "nugget_id", "doc_id", "judge")
_ROLE_OUTCOME: _Columns = {
    "question_id": _QUESTION,
    "role": (TEXT, "nuggets, sub_questions or closed_book_answer"),
    "outcome": (TEXT, "ok, skipped or error"),
    "detail": (TEXT, "why it was skipped or failed", True),
    "model": _MODEL,
}

_ALL = [
    _table(
        "questions",
        TOPIC,
        "Community questions with their accepted answers, as text.",
        ("question_id",),
        {
            "question_id": _QUESTION,
            "title": (TEXT, "title as text"),
            "body_text": (TEXT, "body as text, code in fences"),
            "answer_id": (TEXT, "id of the accepted answer", True),
            "answer_text": (TEXT, "accepted answer as text, code in fences"),
            "tags": (pl.List(pl.String()), "tags in the source's order"),
            "score": (COUNT, "votes of the question", True),
            "view_count": (COUNT, "views of the question", True),
            "asked_at": (TIME, "when the question was asked, null where the source has no date", True),
            "answer_edited_at": (TIME, "last edit of the accepted answer, its creation if never edited", True),
            "url": (TEXT, "page of the question", True),
            "author_url": (TEXT, "page of the question's author, for attribution; null for one who left", True),
            "answer_author_url": (TEXT, "page of the answer's author, for attribution; null for one who left", True),
            "license": (TEXT, "licence of the text by its date", True),
            "content_hash": (TEXT, "sha256 of title, body and answer: an edit is known by it"),
        },
    ),
    _table(
        "question_ledger",
        TOPIC,
        "Posts that did not become a question, each with its reason.",
        ("post_id", "reason"),
        {
            "post_id": (TEXT, "id of the post in its source"),
            "reason": (TEXT, "why it was left out"),
            "detail": (TEXT, "what the reason rests on, such as the missing answer's id", True),
        },
    ),
    _table(
        "tag_statistics",
        TOPIC,
        "Every tag of the topic's dump, to choose topics by: the recent ones with many questions.",
        ("tag",),
        {
            "tag": (TEXT, "tag"),
            "questions": (COUNT, "questions that carry it"),
            "with_accepted_answer": (COUNT, "those of them with an accepted answer"),
            "first_asked_at": (TIME, "when the first of them was asked", True),
            "last_asked_at": (TIME, "when the last of them was asked", True),
            "first_seen_since_floor": (FLAG, "whether the first was asked at or after the topic's floor"),
        },
    ),
    _table(
        "co_occurring_tags",
        TOPIC,
        "Tags that stand beside the topic's own since its floor, to find the libraries that belong to it.",
        ("tag",),
        {
            "tag": (TEXT, "tag"),
            "questions": (COUNT, "questions of the topic that carry it"),
            "share": (NUMBER, "part of the topic's questions, 0 to 1"),
        },
    ),
    _table(
        "commits",
        TOPIC_SNAPSHOT,
        "The commit of each repository at the snapshot.",
        ("repository",),
        {
            "repository": (TEXT, "alias of the repository in the topic"),
            "name": (TEXT, "owner/name or the local name"),
            "branch": (TEXT, "branch that was the default then, null for a pin", True),
            "commit": (TEXT, "40 hex digits"),
            "committed_at": (TIME, "committer date"),
            "authored_at": (TIME, "author date"),
            "resolved_by": (TEXT, "`first_parent` (last commit of the branch before the month's end) or `pin`"),
        },
    ),
    _table(
        "files",
        TOPIC_SNAPSHOT,
        "Every entry of every repository's tree, with what became of it.",
        ("repository", "path"),
        {
            "repository": (TEXT, "alias of the repository"),
            "path": (TEXT, "path in the tree"),
            "blob": (TEXT, "git object id"),
            "bytes": (COUNT, "size of the blob", True),
            "encoding": (TEXT, "encoding it was decoded with", True),
            "language": (TEXT, "language it was read as", True),
            "outcome": (TEXT, "chunked, text, empty, binary, too_large, excluded, missing, submodule, symlink ..."),
            "chunks": (COUNT, "chunks it yielded"),
            "detail": (TEXT, "why, where the outcome alone does not say"),
        },
    ),
    _table(
        "chunks",
        TOPIC_SNAPSHOT,
        "The corpus: pieces of files, at most the topic's token limit each.",
        ("doc_id",),
        {
            "doc_id": _DOC,
            "repository": (TEXT, "alias of the repository"),
            "path": (TEXT, "path in the tree"),
            "start_byte": (COUNT, "first byte in the blob (of the extracted text for notebooks)"),
            "end_byte": (COUNT, "byte after the last"),
            "start_char": (COUNT, "first character"),
            "end_char": (COUNT, "character after the last"),
            "start_line": (COUNT, "first line, from 1"),
            "end_line": (COUNT, "last line"),
            "tokens": (COUNT, "cl100k_base tokens, path head included"),
            "content_hash": (TEXT, "sha256 of the text alone"),
            "language": (TEXT, "language of the file", True),
            "url": (TEXT, "page of these lines at this commit", True),
            "text": (TEXT, "the text, exactly the blob's bytes decoded"),
        },
        order=("repository", "path", "start_byte"),
    ),
    _table(
        "nuggets",
        TOPIC,
        "Atomic facts of each answer.",
        ("nugget_id",),
        {
            "nugget_id": _NUGGET,
            "question_id": _QUESTION,
            "position": (COUNT, "from 0, in the answer's order"),
            "text": (TEXT, "the fact"),
            "model": _MODEL,
            "prompt": _PROMPT,
            "reply": _REPLY,
        },
        order=("question_id", "position"),
    ),
    _table(
        "query_variants",
        TOPIC,
        "Texts used to retrieve for a question.",
        ("question_id", "variant"),
        {
            "question_id": _QUESTION,
            "variant": (TEXT, "question, sub_questions, closed_book_answer, answer or nuggets"),
            "setting": (TEXT, "inference (knows the question only) or oracle (knows the answer)"),
            "text": (TEXT, "the query, or the queries a line each for sub_questions and nuggets"),
            "model": _MODEL,
            "prompt": (TEXT, "version of the prompt, null where none was used", True),
            "reply": _REPLY,
        },
    ),
    _table(
        "nugget_outcomes",
        TOPIC,
        "What came of writing nuggets for each question, so that no error is silent.",
        ("question_id", "role"),
        _ROLE_OUTCOME,
    ),
    _table(
        "variant_outcomes",
        TOPIC,
        "What came of writing sub-questions and closed-book answers for each question.",
        ("question_id", "role"),
        _ROLE_OUTCOME,
    ),
    _table(
        "closed_book_judgments",
        TOPIC,
        "Verdicts on closed-book answers: which nuggets a model states that was shown the question alone.",
        ("nugget_id", "doc_id", "judge"),
        _ANSWER_JUDGMENT,
        order=_JUDGMENT_ORDER,
    ),
    _table(
        "contamination",
        TOPIC,
        "How many nuggets closed-book answers already state, by the month of the question.",
        ("asked",),
        {
            "asked": (TEXT, "month of the question, `undated`, or `all`"),
            "questions": (COUNT, "questions with a closed-book answer by a model"),
            "skipped": (COUNT, "questions with nuggets but without a closed-book answer by a model"),
            "nuggets": (COUNT, "nuggets of those questions"),
            "stated": (COUNT, "nuggets that the answer states"),
            "unjudged": (COUNT, "nuggets without a verdict; in no share"),
            "share": (NUMBER, "stated part of the judged nuggets, 0 to 1", True),
            "share_low": (NUMBER, "95% Wilson interval, low end", True),
            "share_high": (NUMBER, "95% Wilson interval, high end", True),
            "fully_stated": (COUNT, "questions whose every nugget is stated"),
            "judge_kind": _JUDGE_KIND,
        },
        order=(),
    ),
    _table(
        "answer_judgments",
        TOPIC,
        "Verdicts on the generated answers of systems: which nuggets they state.",
        ("nugget_id", "doc_id", "judge"),
        _ANSWER_JUDGMENT,
        order=_JUDGMENT_ORDER,
    ),
    _table(
        "answer_results",
        TOPIC,
        "Generated answers of systems, scored by the share of nuggets that they state.",
        ("system", "measure", "question_id"),
        {
            "system": (TEXT, "name of the system: of its file in data/answers/<topic>"),
            "measure": _MEASURE,
            "question_id": (TEXT, "question, or `all` for the mean"),
            "nuggets": (COUNT, "nuggets of the question, their sum for `all`"),
            "stated": (COUNT, "nuggets that the answer states"),
            "unjudged": (COUNT, "nuggets without a verdict"),
            "value": (NUMBER, "share stated, what is unjudged taken as not stated"),
            "lower": (NUMBER, "the same"),
            "upper": (NUMBER, "share stated, what is unjudged taken as stated"),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "runs",
        TOPIC_SNAPSHOT,
        "Rankings of chunks for each query variant by each retriever and their fusion.",
        ("variant", "retriever", "question_id", "doc_id"),
        {
            "question_id": _QUESTION,
            "variant": (TEXT, "query variant"),
            "retriever": (TEXT, "name of the retriever, `fusion` for all of them fused"),
            "doc_id": _DOC,
            "rank": (COUNT, "from 1"),
            "score": (NUMBER, "the retriever's own score, higher is better"),
        },
        order=("variant", "retriever", "question_id", "rank"),
    ),
    _table(
        "pools",
        TOPIC_SNAPSHOT,
        "Candidates for judging: the fused top of every query variant.",
        ("question_id", "doc_id"),
        {
            "question_id": _QUESTION,
            "doc_id": _DOC,
            "rank": (COUNT, "best fused rank over the variants, ties by doc_id, from 1"),
            "score": (NUMBER, "best fused score over the variants"),
            "found_by": (FOUND_BY, "every variant and retriever that found it in their top, with the rank there"),
        },
        order=("question_id", "rank", "doc_id"),
    ),
    _table(
        "judgments",
        TOPIC_SNAPSHOT,
        "For each nugget and pooled chunk: does the chunk support the nugget?",
        ("nugget_id", "doc_id", "judge"),
        _JUDGMENT,
        order=_JUDGMENT_ORDER,
    ),
    _table(
        "annotations",
        TOPIC_SNAPSHOT,
        "Verdicts of the annotators on a sample or all of the pool, beside the judge's in `judgments`.",
        ("nugget_id", "doc_id", "judge"),
        _JUDGMENT,
        order=_JUDGMENT_ORDER,
    ),
    _table(
        "agreement",
        TOPIC_SNAPSHOT,
        "How far judge and annotators agree: each two of them, and all together.",
        ("statistic", "judge_a", "judge_b"),
        {
            "statistic": (TEXT, "cohen for two judges, fleiss for all together"),
            "judge_a": (TEXT, "first judge, `all` for all together"),
            "judge_b": (TEXT, "second judge, `all` for all together"),
            "judge_kinds": (TEXT, "who judged, joined by +: llm, heuristic, human"),
            "judges": (COUNT, "judges compared"),
            "pairs": (COUNT, "nuggets with chunks on which every one of them gave a verdict"),
            "left_out": (COUNT, "those they were asked about on which one or more failed, or (all) were not asked"),
            "agreement": (NUMBER, "share of equal verdicts, of pairs of judges where there are more", True),
            "agreement_low": (NUMBER, "95% bootstrap interval over questions, low end", True),
            "agreement_high": (NUMBER, "95% bootstrap interval over questions, high end", True),
            "kappa": (NUMBER, "Cohen's or Fleiss' kappa, null where chance alone gives full agreement", True),
            "kappa_low": (NUMBER, "95% bootstrap interval over questions, low end", True),
            "kappa_high": (NUMBER, "95% bootstrap interval over questions, high end", True),
            "base_rate": (NUMBER, "share of supported over all these verdicts", True),
            "base_rate_a": (NUMBER, "share of supported of the first judge", True),
            "base_rate_b": (NUMBER, "share of supported of the second judge", True),
        },
    ),
    _table(
        "disagreements",
        TOPIC_SNAPSHOT,
        "Nuggets and chunks on which judges part, for people to read: the most divided first.",
        ("nugget_id", "doc_id"),
        {
            "question_id": _QUESTION,
            "nugget_id": _NUGGET,
            "doc_id": _DOC,
            "question": (TEXT, "title of the question"),
            "nugget": (TEXT, "the fact"),
            "chunk": (TEXT, "page of the chunk's lines at its commit", True),
            "supported": (pl.List(pl.String()), "judges that say supported"),
            "unsupported": (pl.List(pl.String()), "judges that say unsupported"),
            "reasons": (REASONS, "verdict, reason and quote of each judge"),
            "text": (TEXT, "the chunk's text"),
        },
        order=(),
    ),
    _table(
        "qrels",
        TOPIC_SNAPSHOT,
        "Relevance of documents to nuggets, of the kept questions.",
        ("nugget_id", "doc_id"),
        {
            "question_id": _QUESTION,
            "nugget_id": _NUGGET,
            "doc_id": _DOC,
            "relevance": (COUNT, "1 supports, 0 judged and does not; what is unjudged has no row"),
            "judge_kind": _JUDGE_KIND,
        },
        order=("question_id", "nugget_id", "doc_id"),
    ),
    _table(
        "question_outcomes",
        TOPIC_SNAPSHOT,
        "What became of each question of the snapshot on its way into the benchmark.",
        ("question_id",),
        {
            "question_id": _QUESTION,
            "nuggets": (COUNT, "nuggets of its answer"),
            "supported_nuggets": (COUNT, "nuggets that some chunk supports"),
            "relevant_docs": (COUNT, "chunks that support at least one nugget"),
            "outcome": (TEXT, "kept, no_support, partial_support or not_judged"),
        },
    ),
    _table(
        "statistics",
        TOPIC_SNAPSHOT,
        "The collection in figures (FreshStack, Table 3).",
        ("statistic",),
        {
            "statistic": (TEXT, "name of the figure"),
            "value": (NUMBER, "its value", True),
            "description": (TEXT, "what it counts and its unit"),
        },
        order=(),
    ),
    _table(
        "pooling_results",
        TOPIC_SNAPSHOT,
        "Every query variant and retriever scored on the qrels (FreshStack, Table 4).",
        ("variant", "retriever", "measure", "question_id"),
        {
            "variant": (TEXT, "query variant"),
            "setting": (TEXT, "inference or oracle"),
            "retriever": (TEXT, "name of the retriever or `fusion`"),
            "measure": _MEASURE,
            "question_id": (TEXT, "question, or `all` for the mean"),
            "value": (NUMBER, "score with holes counted as not relevant"),
            "lower": (NUMBER, "score with every hole wrong (equal to value)"),
            "upper": (NUMBER, "no judging of the holes can exceed it"),
            "holes": _HOLES,
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "retrieval_results",
        TOPIC_SNAPSHOT,
        "Systems scored with the question alone (FreshStack, Figure 3; DriftBench, Table 2).",
        ("system", "measure", "question_id"),
        {
            "system": (TEXT, "retriever, fusion, reranked run or submitted run"),
            "measure": _MEASURE,
            "question_id": (TEXT, "question, or `all` for the mean"),
            "value": (NUMBER, "score with holes counted as not relevant"),
            "lower": (NUMBER, "score with every hole wrong (equal to value)"),
            "upper": (NUMBER, "no judging of the holes can exceed it"),
            "holes": _HOLES,
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "comparisons",
        TOPIC_SNAPSHOT,
        "Paired tests between systems, corrected for multiple comparison.",
        ("measure", "system_a", "system_b"),
        {
            "measure": _MEASURE,
            "system_a": (TEXT, "first system"),
            "system_b": (TEXT, "second system"),
            "questions": (COUNT, "questions both were scored on"),
            "difference": (NUMBER, "mean of a minus mean of b"),
            "interval_low": (NUMBER, "95% bootstrap interval of the difference, low end"),
            "interval_high": (NUMBER, "95% bootstrap interval of the difference, high end"),
            "effect_size": (NUMBER, "mean difference over its standard deviation", True),
            "p_value": (NUMBER, "two-sided paired randomisation test"),
            "p_corrected": (NUMBER, "after Holm's correction over all pairs of the measure"),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "support_drift",
        TOPIC,
        "Support of each nugget in each snapshot, against the baseline and the predecessor.",
        ("nugget_id", "snapshot"),
        {
            "question_id": _QUESTION,
            "nugget_id": _NUGGET,
            "snapshot": (TEXT, "month"),
            "supporting_chunks": (COUNT, "chunks that support the nugget, null if it was not judged", True),
            "supporting_repositories": (pl.List(pl.String()), "their repositories, sorted"),
            "nugget_supported": (FLAG, "whether any does, null if it was not judged", True),
            "question_support": (TEXT, "of the whole question: fully, partly, none or not_judged"),
            "change_from_baseline": (TEXT, "same, gained, lost or unknown, of the nugget"),
            "change_from_previous": (TEXT, "same, gained, lost or unknown, of the nugget"),
            "judge_kind": _JUDGE_KIND,
        },
        order=("question_id", "nugget_id", "snapshot"),
    ),
    _table(
        "repository_shift",
        TOPIC,
        "Documents and supporting documents by repository and snapshot (DriftBench, Table 1).",
        ("snapshot", "repository"),
        {
            "snapshot": (TEXT, "month"),
            "repository": (TEXT, "alias, the same before and after a renaming"),
            "documents": (COUNT, "chunks of the repository"),
            "documents_share": (NUMBER, "of all chunks, 0 to 1"),
            "supporting": (COUNT, "chunks that support at least one nugget, null where nothing was judged", True),
            "supporting_share": (NUMBER, "of all supporting chunks, 0 to 1, null where nothing was judged", True),
            "documents_growth": (NUMBER, "relative to the baseline, null where it had none", True),
            "supporting_growth": (NUMBER, "relative to the baseline, null where it had none", True),
        },
    ),
    _table(
        "chunk_lineage",
        TOPIC,
        "What became of each supporting chunk of the baseline in each later snapshot.",
        ("snapshot", "doc_id"),
        {
            "snapshot": (TEXT, "the later month"),
            "doc_id": (TEXT, "chunk of the baseline"),
            "repository": (TEXT, "its repository then"),
            "outcome": (TEXT, "unchanged, moved, renamed, edited, split, merged, migrated or gone"),
            "successors": (pl.List(pl.String()), "doc_ids in the later snapshot, best first"),
            "score": (NUMBER, "similarity to the first successor, 0 to 1", True),
            "evidence": (TEXT, "what the outcome rests on"),
            "supports": (COUNT, "nuggets the chunk supported"),
        },
    ),
    _table(
        "lineage_summary",
        TOPIC,
        "Outcomes of all chunks of the baseline, counted by repository and later snapshot.",
        ("snapshot", "repository", "outcome"),
        {
            "snapshot": (TEXT, "the later month"),
            "repository": (TEXT, "repository in the baseline"),
            "outcome": (TEXT, "as in chunk_lineage"),
            "chunks": (COUNT, "chunks of the baseline"),
            "share": (NUMBER, "of the repository's chunks, 0 to 1"),
        },
    ),
    _table(
        "ranking_correlation",
        TOPIC,
        "Agreement of system rankings between snapshots.",
        ("measure", "snapshot_a", "snapshot_b"),
        {
            "measure": _MEASURE,
            "snapshot_a": (TEXT, "earlier month"),
            "snapshot_b": (TEXT, "later month"),
            "systems": (COUNT, "systems scored in both"),
            "questions": (COUNT, "questions kept in both"),
            "tau_b": (NUMBER, "Kendall's tau-b, null with fewer than two systems or all tied", True),
            "tie_low": (NUMBER, "lowest tau-b that the ties allow", True),
            "tie_high": (NUMBER, "highest tau-b that the ties allow", True),
            "questions_low": (NUMBER, "95% bootstrap interval over questions, low end", True),
            "questions_high": (NUMBER, "95% bootstrap interval over questions, high end", True),
            "systems_low": (NUMBER, "95% bootstrap interval over systems, low end", True),
            "systems_high": (NUMBER, "95% bootstrap interval over systems, high end", True),
            "rbo": (NUMBER, "rank-biased overlap, top-weighted agreement, null where tau_b is", True),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "system_drift",
        TOPIC,
        "How each system's scores changed between snapshots, on the questions kept in both.",
        ("measure", "system", "snapshot_a", "snapshot_b"),
        {
            "measure": _MEASURE,
            "system": (TEXT, "retriever, fusion, reranked run or submitted run"),
            "snapshot_a": (TEXT, "earlier month"),
            "snapshot_b": (TEXT, "later month"),
            "questions": (COUNT, "questions kept in both"),
            "score_a": (NUMBER, "mean score in the earlier month"),
            "score_b": (NUMBER, "mean score in the later month"),
            "difference": (NUMBER, "later minus earlier"),
            "interval_low": (NUMBER, "95% bootstrap interval of the difference, low end"),
            "interval_high": (NUMBER, "95% bootstrap interval of the difference, high end"),
            "p_value": (NUMBER, "two-sided paired randomisation test"),
            "p_corrected": (NUMBER, "after Holm's correction over the systems of the measure and pair of months"),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "question_freshness",
        TOPIC,
        "How old each question is at each snapshot, and signs that its answer has aged.",
        ("question_id", "snapshot"),
        {
            "question_id": _QUESTION,
            "snapshot": (TEXT, "month"),
            "age_days": (COUNT, "days from asking to the snapshot's end, null without a date", True),
            "answer_edited_after": (
                FLAG,
                "whether the answer was edited after the snapshot, null without a date",
                True,
            ),
            "supporting_chunks": (COUNT, "chunks that support at least one nugget, null if not judged", True),
            "deprecated_chunks": (COUNT, "of them, those that speak of a deprecation or removal", True),
            "markers": (pl.List(pl.String()), "lines that do, a few, shortened"),
            "question_support": (TEXT, "fully, partly, none or not_judged"),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "decomposition",
        TOPIC,
        "One of corpus, judge, pool and chunker varied with the other three held: its effect on scores and rankings.",
        ("factor", "variation", "measure"),
        {
            "factor": (TEXT, "what was varied: corpus, judge, pool or chunker"),
            "variation": (TEXT, "from what to what"),
            "measure": (TEXT, "measure by its name in the field, `all` where nothing was measured"),
            "outcome": (TEXT, "measured or skipped"),
            "detail": (TEXT, "why it was skipped, or what to bear in mind"),
            "systems": (COUNT, "systems scored in both conditions", True),
            "questions": (COUNT, "questions kept in both conditions", True),
            "questions_before": (COUNT, "questions kept before", True),
            "questions_after": (COUNT, "questions kept after", True),
            "score_before": (NUMBER, "mean over systems and questions before", True),
            "score_after": (NUMBER, "mean over systems and questions after", True),
            "difference": (NUMBER, "after minus before", True),
            "largest_difference": (NUMBER, "largest change of one system's mean, with its sign", True),
            "tau_b": (NUMBER, "Kendall's tau-b of the systems' rankings, null where undefined", True),
            "tie_low": (NUMBER, "lowest tau-b that the ties allow", True),
            "tie_high": (NUMBER, "highest tau-b that the ties allow", True),
            "questions_low": (NUMBER, "95% bootstrap interval of tau-b over questions, low end", True),
            "questions_high": (NUMBER, "95% bootstrap interval of tau-b over questions, high end", True),
            "judge_kind": _JUDGE_KIND,
        },
    ),
    _table(
        "model_calls",
        TOPIC,
        "One row a model call, paid or read from the cache.",
        ("call_id",),
        {
            "call_id": (TEXT, "id of the call"),
            "role": (TEXT, "role that called"),
            "snapshot": (TEXT, "month it was made for, null for topic-level roles", True),
            "question_id": (TEXT, "question it was about", True),
            "model": _MODEL,
            "input_tokens": (COUNT, "tokens in", True),
            "output_tokens": (COUNT, "tokens out", True),
            "dollars": (NUMBER, "price of the call, 0 from the cache, null where the price is unknown", True),
            "seconds": (NUMBER, "latency"),
            "cached": (FLAG, "read from the cache"),
            "batch": (FLAG, "made through a batch API"),
            "finish_reason": (TEXT, "as the provider says", True),
            "error": (TEXT, "what went wrong, null if nothing", True),
            "called_at": (TIME, "when"),
        },
        order=("called_at", "call_id"),
    ),
]

TABLES: dict[str, Table] = {table.name: table for table in _ALL}
