"""The collection in figures: the columns of FreshStack's Table 3, and what stands behind the judgments."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import polars as pl

from freshstack_dagster.tables import TABLES

_CODE = re.compile(r"^ {0,3}(?:>[ >]*)?(?:[-*+] +|\d+[.)] +)?(?:`{3,}|~{3,})", re.MULTILINE)
_LONGEST = 200_000
"""Characters that the tokenizer is given at once: it refuses more than 200,000 tokens."""


def collection_statistics(
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    chunks: pl.DataFrame,
    commits: pl.DataFrame,
    judgments: pl.DataFrame,
    qrels: pl.DataFrame,
    outcomes: pl.DataFrame,
) -> pl.DataFrame:
    """Describe a collection, as the table `statistics`.

    Inputs are the tables of those names (`outcomes`: question_outcomes), `questions` those of the snapshot; `chunks`
    needs doc_id and tokens. The first eleven rows are the columns of FreshStack's Table 3, over the kept questions:
    tokens are those of GPT-4o's tokenizer (o200k_base), a question being its title and body; the code shares count
    texts with at least one code block; relevant documents of a question are counted once however many of its nuggets
    they support. Then follow counts of what was filtered and judged. A mean over nothing is null.
    """
    kept = outcomes.filter(pl.col("outcome") == "kept")
    asked = questions.join(kept, on="question_id", how="semi").sort("question_id")
    query = [f"{row['title']}\n\n{row['body_text']}" for row in asked.select("title", "body_text").to_dicts()]
    answer = asked["answer_text"].to_list()
    facts = nuggets.join(kept, on="question_id", how="semi")
    relevant = qrels.filter(pl.col("relevance") > 0)
    per_nugget = facts.join(relevant.group_by("nugget_id").len("docs"), on="nugget_id", how="left")["docs"].fill_null(0)

    rows: list[tuple[str, float | None, str]] = [
        ("queries", kept.height, "questions of the benchmark: every nugget is supported"),
        ("docs", chunks.height, "chunks of the corpus"),
        ("repositories", commits.height, "repositories of the corpus"),
        ("nuggets_per_query", _mean(facts.height, kept.height), "mean number of nuggets of a question"),
        ("query_tokens", _mean_tokens(query), "mean o200k_base tokens of a question, title and body"),
        ("answer_tokens", _mean_tokens(answer), "mean o200k_base tokens of an accepted answer"),
        ("query_code_pct", _code_share(query), "percent of questions with a code block"),
        ("answer_code_pct", _code_share(answer), "percent of answers with a code block"),
        ("relevant_docs_per_nugget", _number(per_nugget.mean()), "mean number of chunks that support a nugget"),
        (
            "relevant_docs_per_query",
            _number(kept["relevant_docs"].mean()),
            "mean number of different chunks that support at least one nugget of a question",
        ),
        ("questions", outcomes.height, "questions of the snapshot, before filtering"),
    ]
    rows += [
        (f"questions_{outcome}", outcomes.filter(pl.col("outcome") == outcome).height, description)
        for outcome, description in (
            ("no_support", "questions filtered out: no nugget is supported"),
            ("partial_support", "questions filtered out: a nugget is supported by no chunk"),
            ("not_judged", "questions filtered out: without nuggets, or errors leave their support open"),
        )
    ]
    judged = judgments.filter(pl.col("verdict").is_in(["supported", "unsupported"]))
    documents = judged.select("question_id", "doc_id").n_unique()
    rows += [
        ("chunk_tokens", _number(chunks["tokens"].mean()), "mean cl100k_base tokens of a chunk, path head included"),
        ("judged_documents", documents, "pairs of a question and a chunk that were judged"),
        ("supporting_documents", relevant["doc_id"].n_unique(), "different chunks that support a kept question"),
    ]
    rows += [
        (f"judgments_{verdict}", judgments.filter(pl.col("verdict") == verdict).height, description)
        for verdict, description in (
            ("supported", "judgments: the chunk supports the nugget"),
            ("unsupported", "judgments: it does not"),
            ("error", "judgments that failed; such pairs are unjudged"),
        )
    ]
    return pl.DataFrame(rows, schema=TABLES["statistics"].schema, orient="row", strict=False).pipe(
        TABLES["statistics"].conform
    )


def has_code(text: str) -> bool:
    """Whether a text in Markdown holds a fenced code block."""
    return _CODE.search(text) is not None


def count_tokens(text: str) -> int:
    """Number of o200k_base tokens (GPT-4o's) of a text; what looks like a special token counts as text."""
    tokenizer = _tokenizer()
    # Cut at a line's end, where tokens end as well but for runs of blank lines.
    total, start = 0, 0
    while start < len(text):
        end = min(len(text), start + _LONGEST)
        if end < len(text):
            end = max(text.rfind("\n", start, end) + 1, start) or end
            end = end if end > start else start + _LONGEST
        total += len(tokenizer.encode_ordinary(text[start:end]))
        start = end
    return total


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    import bpe_openai

    return bpe_openai.get_encoding("o200k_base")


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _mean_tokens(texts: list[str]) -> float | None:
    return _mean(sum(map(count_tokens, texts)), len(texts))


def _code_share(texts: list[str]) -> float | None:
    return _mean(100 * sum(map(has_code, texts)), len(texts))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
