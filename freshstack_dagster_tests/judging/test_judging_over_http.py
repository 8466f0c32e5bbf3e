"""Judging through the real client against a server that misbehaves: every verdict is right or an error."""

from __future__ import annotations

import re
from itertools import cycle, islice

import polars as pl
import pytest

from freshstack_dagster.judging.support import judge_support, judging_counts
from freshstack_dagster.language_models import Models
from freshstack_dagster.settings import Judging
from freshstack_dagster_tests.judging.fakes import chunks, nuggets, pools, questions
from freshstack_dagster_tests.language_models.misbehaving_server import (
    CONTENT_FAULTS,
    ENDINGS,
    MisbehavingServer,
    Prompt,
)
from freshstack_dagster_tests.language_models.support import make_models, make_role

COUNT = 15
IDS = [f"q{number}" for number in range(COUNT)]
QUESTIONS = questions(**dict.fromkeys(IDS, "Do it so."))
NUGGETS = nuggets({question_id: [f"{word} is needed" for word in ("open", "close")] for question_id in IDS})
TEXTS = {
    f"d{number}": f"document {number}: {'open' if number % 2 else ''} {'close' if number % 3 == 0 else ''}"
    for number in range(12)
}
POOLS = pools({question_id: list(TEXTS) for question_id in IDS})


def answer(prompt: Prompt) -> dict:
    """The right reply to any judging prompt: a nugget is supported by its first word."""
    facts = re.search(r"<nuggets>\n(.*?)\n</nuggets>", prompt.user, re.DOTALL)[1].split("\n")
    words = [fact.split()[1] for fact in facts]
    entries = []
    for number, text in re.findall(r'<document number="(\d+)">\n(.*?)\n</document>', prompt.user, re.DOTALL):
        held = [place for place, word in enumerate(words, 1) if word in text]
        entries.append(
            {
                "document": int(number),
                "reason": f"It holds {held} of `list[int]` {{2}}.",
                "supported": [{"nugget": place, "quote": words[place - 1]} for place in held],
                "unsupported": [place for place in range(1, len(words) + 1) if place not in held],
            }
        )
    return {"documents": entries}


def right(row: dict) -> bool:
    word = ("open", "close")[int(row["nugget_id"].rsplit("_", 1)[1])]
    return row["verdict"] == ("supported" if word in TEXTS[row["doc_id"]] else "unsupported")


def judge(server: MisbehavingServer, provider: str, tmp_path, **changes) -> tuple[pl.DataFrame, Models]:
    models = make_models(tmp_path / "cache")
    role = make_role(server, provider, **{"concurrency": 8, **changes})
    judging = Judging(chunks_per_call=6)
    return judge_support(QUESTIONS, NUGGETS, POOLS, chunks(TEXTS), models, role, judging), models


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_every_verdict_is_right_or_an_error_whatever_the_server_does(provider, tmp_path):
    faults = list(islice(cycle([*CONTENT_FAULTS, *ENDINGS, "http_429", "http_500", "fenced", None, None]), 3 * COUNT))
    with MisbehavingServer(answer, schedule=dict(enumerate(faults))) as server:
        judgments, models = judge(server, provider, tmp_path)
        calls = len(server.served)
        # What was answered is not asked again, and what failed for good says so again.
        again, _ = judge(server, provider, tmp_path)
        asked_again = [one.prompt.user for one in server.served[calls:]]
    assert judgments.height == COUNT * 2 * 12
    rows = judgments.to_dicts()
    assert all(row["verdict"] == "error" or right(row) for row in rows)
    counts = judging_counts(judgments)
    assert counts["supported"] + counts["unsupported"] + counts["error"] == counts["judgments"]
    # One fault in many is retried away; a filtered batch stays an error and says why.
    assert 0 < counts["error"] < 0.5 * counts["judgments"]
    assert (
        judgments.filter(verdict="error")["reason"]
        .str.contains(r"^(content_filter|refusal|malformed|transport|length): ")
        .all()
    )
    assert judgments.filter(pl.col("verdict") != "error")["reply"].null_count() == 0
    assert models.summary()["errors"]
    ok = {row["nugget_id"] + row["doc_id"] for row in rows if row["verdict"] != "error"}
    assert all(row["verdict"] != "error" for row in again.to_dicts() if row["nugget_id"] + row["doc_id"] in ok)
    assert len(asked_again) <= sum(fault is not None and fault.startswith("http") for fault in faults)


def test_a_truncated_reply_halves_the_batch_until_it_fits(tmp_path):
    def too_long(_number: int, prompt: Prompt) -> str | None:
        return "length" if prompt.user.count("<document number=") > 2 else None

    with MisbehavingServer(answer, schedule=too_long) as server:
        judgments, _ = judge(server, "openai", tmp_path)
    assert all(right(row) for row in judgments.to_dicts())
    # Per question two batches of six: each is asked once, its halves of three once, then ones and twos.
    assert len(server.served) == COUNT * 2 * (1 + 2 + 4)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_batch_api_gives_the_same_verdicts(provider, tmp_path):
    with MisbehavingServer(answer) as server:
        direct, _ = judge(server, provider, tmp_path / "direct")
        batched, models = judge(server, provider, tmp_path / "batch", batch=True)
        assert server.batches
    same = ["nugget_id", "doc_id", "verdict", "quote"]
    assert direct.select(same).equals(batched.select(same))
    assert models.calls()["batch"].all()
