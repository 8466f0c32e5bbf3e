"""Which columns a column comes from, as Dagster shows it: ids that are handed on, and what a value is made of."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from freshstack_dagster.tables import TABLES

# Handed on under their own name by whatever reads them.
HANDED_ON = frozenset(
    [
        "question_id",
        "nugget_id",
        "doc_id",
        "content_hash",
        "repository",
        "variant",
        "retriever",
        "judge_kind",
        "measure",
    ]
)

_QUESTION = ("questions.title", "questions.body_text")
_ANSWER = (*_QUESTION, "questions.answer_text")
_VERDICT = ("judgments.verdict", "annotations.verdict")
_JUDGED = dict.fromkeys(("verdict", "reason", "quote"), (*_ANSWER, "nuggets.text", "chunks.text"))
_SCORES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("value", "lower", "upper", "holes"), ("runs.score", "qrels.relevance")
)
_SCORED = ("retrieval_results.value",)

MADE_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "files": dict.fromkeys(("path", "blob"), ("commits.commit",)),
    "chunks": dict.fromkeys(("text", "doc_id", "content_hash"), ("commits.commit",)),
    "nuggets": {"text": _ANSWER},
    "query_variants": {"text": (*_ANSWER, "nuggets.text")},
    "runs": dict.fromkeys(("rank", "score"), ("query_variants.text", "chunks.text")),
    "pools": dict.fromkeys(("rank", "score", "found_by"), ("runs.rank", "runs.score")),
    "judgments": {**_JUDGED, "nugget_hash": ("nuggets.text",)},
    "annotations": {**_JUDGED, "nugget_hash": ("nuggets.text",)},
    "qrels": {"relevance": _VERDICT},
    "question_outcomes": dict.fromkeys(("supported_nuggets", "relevant_docs", "outcome"), _VERDICT),
    "pooling_results": _SCORES,
    "retrieval_results": {**_SCORES, "system": ("runs.retriever",)},
    "comparisons": dict.fromkeys(("difference", "effect_size", "p_value", "p_corrected"), _SCORED),
    "support_drift": dict.fromkeys(("supporting_chunks", "nugget_supported", "question_support"), _VERDICT),
    "repository_shift": {"documents": ("chunks.doc_id",), "supporting": _VERDICT},
    "chunk_lineage": dict.fromkeys(("outcome", "successors", "score"), ("chunks.content_hash", "chunks.text")),
    "ranking_correlation": dict.fromkeys(("tau_b", "rbo"), _SCORED),
    "system_drift": dict.fromkeys(("score_a", "score_b", "difference", "p_value", "p_corrected"), _SCORED),
    "question_freshness": {
        "age_days": ("questions.asked_at",),
        "answer_edited_after": ("questions.answer_edited_at",),
        "supporting_chunks": _VERDICT,
        "markers": ("chunks.text",),
    },
}


def column_lineage(table: str, reads: Sequence[str]) -> dg.TableColumnLineage:
    """The columns of `reads` that each column of a table comes from; columns that come from none are left out."""
    made_of = MADE_OF.get(table, {})
    deps = {}
    for column in TABLES[table].columns:
        sources = list(made_of.get(column, ()))
        if column in HANDED_ON and not sources:
            sources = [f"{read}.{column}" for read in reads if column in TABLES[read].columns]
        if sources:
            deps[column] = [dg.TableColumnDep(*source.split(".")) for source in sources]
    return dg.TableColumnLineage(deps)
