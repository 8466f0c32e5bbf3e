"""Agreement of judges against textbook examples and closed forms."""

from __future__ import annotations

import math
from itertools import product

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.agreement import (
    disagreements,
    fleiss_agreement,
    majority_verdict,
    pairwise_agreement,
)
from freshstack_dagster.tables import TABLES

WORD = {1: "supported", 0: "unsupported", -1: "error"}


def judgments(verdicts: dict[str, list[int]], *, questions: int = 5, kinds: dict[str, str] | None = None):
    """Rows of `judgments`: for each judge a verdict (1, 0, -1 for an error) on each pair."""
    rows = []
    for judge, codes in verdicts.items():
        for number, code in enumerate(codes):
            question = f"q{number % questions}"
            rows.append(
                {
                    "question_id": question,
                    "nugget_id": f"{question}_0",
                    "doc_id": f"d{number}",
                    "nugget_hash": "n",
                    "content_hash": f"c{number}",
                    "verdict": WORD[code],
                    "reason": f"{judge} says {code}",
                    "quote": f"quote of {judge}" if code == 1 else None,
                    "quote_found": judge != "a" if code == 1 else None,
                    "judge": judge,
                    "judge_kind": (kinds or {}).get(judge, "llm"),
                    "prompt": "p",
                    "reply": None,
                    "carried_from": None,
                }
            )
    return TABLES["judgments"].conform(pl.DataFrame(rows, schema=TABLES["judgments"].schema))


def counted(both: int, only_a: int, only_b: int, neither: int):
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return judgments({"a": a, "b": b}, questions=both + only_a + only_b + neither)


def test_cohens_kappa_of_known_tables():
    # Two readers, 50 grant proposals: 20 both yes, 5 and 10 apart, 15 both no: kappa 0.4.
    row = pairwise_agreement(counted(20, 5, 10, 15)).to_dicts()[0]
    assert row["pairs"] == 50
    assert row["agreement"] == pytest.approx(0.7)
    assert row["kappa"] == pytest.approx(0.4)
    assert (row["base_rate_a"], row["base_rate_b"]) == pytest.approx((0.5, 0.6))
    assert row["agreement_low"] < 0.7 < row["agreement_high"]
    assert row["kappa_low"] < 0.4 < row["kappa_high"]
    # The same agreement of 60% with other base rates.
    assert pairwise_agreement(counted(45, 15, 25, 15))["kappa"][0] == pytest.approx(0.1304, abs=1e-4)
    assert pairwise_agreement(counted(25, 35, 5, 35))["kappa"][0] == pytest.approx(0.2593, abs=1e-4)


def test_kappa_is_null_where_chance_explains_all():
    row = pairwise_agreement(judgments({"a": [0] * 8, "b": [0] * 8})).to_dicts()[0]
    assert row["agreement"] == 1.0
    assert row["kappa"] is None
    assert row["base_rate_a"] == 0.0


def test_errors_and_pairs_not_asked_are_no_disagreement():
    table = judgments({"a": [1, 0, -1, 1], "b": [1, 0, 0, -1]})
    row = pairwise_agreement(table).to_dicts()[0]
    assert (row["pairs"], row["left_out"], row["agreement"]) == (2, 2, 1.0)
    fewer = table.filter(~((pl.col("judge") == "b") & (pl.col("doc_id") == "d0")))
    row = pairwise_agreement(fewer).to_dicts()[0]
    assert (row["pairs"], row["left_out"]) == (1, 2)


def test_fleiss_kappa_equals_its_formula():
    # Five pairs, three judges, supported counts 3, 2, 1, 0, 0.
    table = judgments({"a": [1, 1, 1, 0, 0], "b": [1, 1, 0, 0, 0], "c": [1, 0, 0, 0, 0]})
    row = fleiss_agreement(table).to_dicts()[0]
    observed = (1 + 1 / 3 + 1 / 3 + 1 + 1) / 5
    rate = 6 / 15
    chance = rate**2 + (1 - rate) ** 2
    assert row["agreement"] == pytest.approx(observed)
    assert row["kappa"] == pytest.approx((observed - chance) / (1 - chance))
    assert row["base_rate"] == pytest.approx(rate)
    assert (row["judges"], row["pairs"], row["left_out"]) == (3, 5, 0)


def test_fleiss_leaves_out_what_not_all_judged():
    row = fleiss_agreement(judgments({"a": [1, 1, -1], "b": [1, 0, 0], "c": [1, 0, 0]})).to_dicts()[0]
    assert (row["pairs"], row["left_out"]) == (2, 1)


def test_few_judges_or_none_give_nulls_not_figures():
    assert pairwise_agreement(judgments({"a": [1, 0]})).height == 0
    assert pairwise_agreement(TABLES["judgments"].empty()).height == 0
    for table in (judgments({"a": [1, 0]}), TABLES["judgments"].empty()):
        row = fleiss_agreement(table).to_dicts()[0]
        assert row["kappa"] is None
    assert disagreements(TABLES["judgments"].empty()).height == 0
    assert majority_verdict(TABLES["judgments"].empty()).height == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1)), min_size=1, max_size=40), st.integers(1, 4))
def test_pairwise_figures_equal_their_definitions(codes, questions):
    a, b = zip(*codes, strict=True)
    row = pairwise_agreement(judgments({"a": list(a), "b": list(b)}, questions=questions), resamples=50).to_dicts()[0]
    kept = [(x, y) for x, y in codes if x >= 0 and y >= 0]
    assert row["pairs"] == len(kept)
    assert row["left_out"] == len(codes) - len(kept)
    if not kept:
        assert row["agreement"] is None
        return
    agreement = sum(x == y for x, y in kept) / len(kept)
    rate_a, rate_b = sum(x for x, _ in kept) / len(kept), sum(y for _, y in kept) / len(kept)
    chance = rate_a * rate_b + (1 - rate_a) * (1 - rate_b)
    assert row["agreement"] == pytest.approx(agreement)
    assert row["agreement_low"] <= row["agreement_high"]
    if math.isclose(chance, 1):
        assert row["kappa"] is None
    else:
        assert row["kappa"] == pytest.approx((agreement - chance) / (1 - chance))


def test_intervals_hang_on_the_seed_and_narrow_with_more_questions():
    def width(questions: int) -> float:
        pattern = [(1, 1), (0, 0), (1, 0), (0, 0), (1, 1), (0, 1)] * 40
        table = judgments({"a": [x for x, _ in pattern], "b": [y for _, y in pattern]}, questions=questions)
        row = pairwise_agreement(table).to_dicts()[0]
        return row["kappa_high"] - row["kappa_low"]

    assert width(7) == width(7)
    assert 0 < width(200) < 0.4


def test_disagreements_list_both_sides_most_divided_first():
    table = judgments({"a": [1, 1, 0, 1], "b": [1, 0, 0, 1], "c": [1, 0, 0, 0], "d": [1, 1, 0, -1]})
    listed = disagreements(table)
    assert listed.select("doc_id", "supported", "unsupported").rows() == [
        ("d1", ["a", "d"], ["b", "c"]),
        ("d3", ["a", "b"], ["c"]),
    ]
    assert [reason["judge"] for reason in listed["reasons"][0]] == ["a", "b", "c", "d"]


def test_a_majority_needs_more_than_a_tie_and_errors_do_not_vote():
    table = judgments({"a": [1, 1, 0, -1, -1], "b": [1, 0, 0, -1, 1], "c": [0, -1, 0, -1, -1]})
    voted = dict(majority_verdict(table).select("doc_id", "verdict").iter_rows())
    assert voted == {"d0": "supported", "d1": "error", "d2": "unsupported", "d3": "error", "d4": "supported"}
    rows = {row["doc_id"]: row for row in majority_verdict(table).to_dicts()}
    assert rows["d0"]["reason"] == "2 supported, 1 unsupported, 0 errors"
    # Judge a quotes what the chunk does not hold; the quote of b is taken.
    assert (rows["d0"]["quote"], rows["d0"]["quote_found"]) == ("quote of b", True)
    assert rows["d2"]["quote"] is None
    assert rows["d0"]["judge"] == "majority"


@pytest.mark.parametrize(
    ("kinds", "kind"),
    list(
        zip(
            [{"a": "human"}, {"a": "heuristic"}, {"a": "human", "b": "human", "c": "human"}, {}],
            ["llm", "heuristic", "human", "llm"],
            strict=True,
        )
    ),
)
def test_a_majority_is_as_weak_as_its_weakest_judge(kinds, kind):
    table = judgments({"a": [1], "b": [1], "c": [0]}, kinds=kinds)
    assert majority_verdict(table)["judge_kind"].to_list() == [kind]


def test_judges_of_different_texts_have_no_majority():
    table = judgments({"a": [1], "b": [1]})
    changed = table.with_columns(
        content_hash=pl.when(pl.col("judge") == "b").then(pl.lit("other")).otherwise("content_hash")
    )
    with pytest.raises(EvaluationError, match="different texts for nugget q0_0 and d0"):
        majority_verdict(changed)


def test_every_vote_of_three_is_counted_right():
    votes = list(product([1, 0, -1], repeat=3))
    table = judgments({judge: [vote[place] for vote in votes] for place, judge in enumerate("abc")})
    voted = dict(majority_verdict(table).select("doc_id", "verdict").iter_rows())
    for number, vote in enumerate(votes):
        balance = sum(1 if code == 1 else -1 if code == 0 else 0 for code in vote)
        assert voted[f"d{number}"] == ("supported" if balance > 0 else "unsupported" if balance < 0 else "error")
