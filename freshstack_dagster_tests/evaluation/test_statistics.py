"""The collection in figures."""

from __future__ import annotations

import polars as pl
import pytest

from freshstack_dagster.evaluation import build_qrels, collection_statistics
from freshstack_dagster.evaluation.statistics import count_tokens, has_code
from freshstack_dagster_tests.evaluation.test_qrels import NO, YES, judgments_of, nuggets_of

FENCE = "Try:\n\n```ts\nconst a = 1\n```"


def test_the_columns_of_table_3() -> None:
    judgments = judgments_of(
        [
            *[("1_0", "a", YES), ("1_0", "b", YES), ("1_1", "a", YES), ("1_1", "b", NO)],
            *[("2_0", "c", YES), ("3_0", "a", NO), ("3_0", "c", "error")],
        ]
    )
    questions = pl.DataFrame(
        {
            "question_id": ["1", "2", "3"],
            "title": ["hello world", "hello", "left out"],
            "body_text": ["hello world", FENCE, FENCE],
            "answer_text": ["hello world", "hello `world`", FENCE],
        }
    )
    nuggets = nuggets_of("1_0", "1_1", "2_0", "3_0")
    qrels, outcomes = build_qrels(judgments, nuggets, questions)
    chunks = pl.DataFrame({"doc_id": ["a", "b", "c", "d"], "repository": ["r"] * 4, "tokens": [1, 2, 3, 4]})
    commits = pl.DataFrame({"repository": ["r"]})
    statistics = collection_statistics(questions, nuggets, chunks, commits, judgments, qrels, outcomes)
    values = dict(statistics.select("statistic", "value").rows())
    assert list(values)[:10] == [
        *["queries", "docs", "repositories", "nuggets_per_query", "query_tokens", "answer_tokens"],
        *["query_code_pct", "answer_code_pct", "relevant_docs_per_nugget", "relevant_docs_per_query"],
    ]
    assert (values["queries"], values["docs"], values["repositories"], values["questions"]) == (2, 4, 1, 3)
    assert values["nuggets_per_query"] == 1.5
    assert values["relevant_docs_per_nugget"] == pytest.approx(4 / 3)
    # Question 1 has two supporting documents, though one of them supports two nuggets.
    assert values["relevant_docs_per_query"] == 1.5
    assert (values["query_code_pct"], values["answer_code_pct"]) == (50, 0)
    assert (
        values["query_tokens"] == (count_tokens("hello world\n\nhello world") + count_tokens(f"hello\n\n{FENCE}")) / 2
    )
    assert (values["questions_not_judged"], values["questions_no_support"]) == (1, 0)
    assert (values["judgments_supported"], values["judgments_unsupported"], values["judgments_error"]) == (4, 2, 1)
    assert (values["judged_documents"], values["supporting_documents"]) == (4, 3)


def test_an_empty_benchmark_has_no_means() -> None:
    questions = pl.DataFrame({"question_id": ["1"], "title": [""], "body_text": [""], "answer_text": [""]})
    judgments = judgments_of([])
    qrels, outcomes = build_qrels(judgments, nuggets_of(), questions)
    chunks = pl.DataFrame({"doc_id": [], "tokens": []}, schema={"doc_id": pl.String(), "tokens": pl.Int64()})
    statistics = collection_statistics(
        questions, nuggets_of(), chunks, pl.DataFrame({"repository": []}), judgments, qrels, outcomes
    )
    values = dict(statistics.select("statistic", "value").rows())
    assert values["queries"] == 0
    assert values["query_tokens"] is values["relevant_docs_per_query"] is values["chunk_tokens"] is None


@pytest.mark.parametrize("text", [FENCE, "~~~\nx\n~~~", "- ```\n  x\n  ```", "> ```js\n> x\n> ```", "1. ```\n   x"])
def test_code_blocks_are_seen(text: str) -> None:
    assert has_code(text)


@pytest.mark.parametrize("text", ["", "plain", "inline `code`", "a ``` in a line", "    ```"])
def test_what_is_no_code_block(text: str) -> None:
    assert not has_code(text)


def test_tokens_are_those_of_o200k() -> None:
    assert count_tokens("") == 0
    assert count_tokens("hello world") == 2
    assert count_tokens("<|endoftext|>") > 1
    long = "word line\n" * 40_000
    assert count_tokens(long) == 40_000 * count_tokens("word line\n")
