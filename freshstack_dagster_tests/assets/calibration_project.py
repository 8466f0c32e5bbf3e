"""A project in a folder with a few questions that stand built up to the pools, and a server that judges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import yaml

from freshstack_dagster.lake import Lake
from freshstack_dagster.partitions import multi_key
from freshstack_dagster.resources import Project
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.judging.fakes import nuggets, pools, questions
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt

TOPIC, SNAPSHOT = "sample", "2024-10"
IDS = [f"q{number}" for number in range(6)]
WORDS = ("open", "close")
DOCS = [f"docs/d{number}.md_0_9" for number in range(10)]
# Every nugget of every question is supported by some document.
TEXTS = {
    doc: f"document {number}: {'open' if number % 2 else ''} {'close' if number % 3 == 0 else ''}".strip()
    for number, doc in enumerate(DOCS)
}
PRICES = {"models": {"compatible:*": {"input": 2, "output": 8}}}


def answer(prompt: Prompt) -> dict[str, Any]:
    """The right reply to a judging prompt, but `model-wrong` never finds `close`."""
    listed = re.search(r"<nuggets>\n(.*?)\n</nuggets>", prompt.user, re.DOTALL)
    assert listed is not None
    words = [fact.split()[1] for fact in listed[1].split("\n")]
    entries = []
    for number, text in re.findall(r'<document number="(\d+)">\n(.*?)\n</document>', prompt.user, re.DOTALL):
        held = [
            place
            for place, word in enumerate(words, 1)
            if word in text and not (word == "close" and prompt.model == "model-wrong")
        ]
        entries.append(
            {
                "document": int(number),
                "reason": f"{prompt.model} read it",
                "supported": [{"nugget": place, "quote": words[place - 1]} for place in held],
                "unsupported": [place for place in range(1, len(words) + 1) if place not in held],
            }
        )
    return {"documents": entries}


def role(server: MisbehavingServer, model: str) -> dict[str, Any]:
    """A role that asks the server."""
    return {"provider": "compatible", "model": model, "base_url": server.openai_url, "timeout_seconds": 5}


def make_project(root: Path, **settings: Any) -> Lake:
    """Write a topic file with the given settings, and its tables up to the pools."""
    (root / "data" / "topics").mkdir(parents=True, exist_ok=True)
    (root / "prices.yaml").write_text(yaml.safe_dump(PRICES))
    topic = {
        "title": "Test",
        "repositories": [{"name": "a/docs"}],
        "budget": {"prices": "prices.yaml"},
        **settings,
    }
    (root / "data" / "topics" / f"{TOPIC}.yaml").write_text(yaml.safe_dump(topic))
    lake = Lake(root / "data" / "lake", root / "data" / "freshstack.duckdb")
    facts = {question_id: [f"{word} it first" for word in WORDS] for question_id in IDS}
    lake.write("questions", questions(**dict.fromkeys(IDS, "Do it so.")), topic=TOPIC)
    lake.write("nuggets", nuggets(facts), topic=TOPIC)
    lake.write("chunks", chunk_table(TEXTS), topic=TOPIC, snapshot=SNAPSHOT)
    lake.write("pools", pools(dict.fromkeys(IDS, DOCS)), topic=TOPIC, snapshot=SNAPSHOT)
    return lake


def chunk_table(texts: Mapping[str, str]) -> pl.DataFrame:
    """The table `chunks`, a file a chunk."""
    rows = [
        {
            "doc_id": doc_id,
            "repository": "docs",
            "path": doc_id.split("/", 1)[1].rsplit("_", 2)[0],
            **dict.fromkeys(("start_byte", "start_char"), 0),
            **dict.fromkeys(("end_byte", "end_char"), len(text)),
            **dict.fromkeys(("start_line", "end_line"), 1),
            "tokens": len(text) // 4 + 1,
            "content_hash": hashlib.sha256(text.encode()).hexdigest(),
            "language": None,
            "url": f"https://example.org/{doc_id}",
            "text": text,
        }
        for doc_id, text in texts.items()
    ]
    return pl.DataFrame(rows, schema=TABLES["chunks"].schema)


def materialize(
    root: Path, *assets: dg.AssetsDefinition, topic: str = TOPIC, snapshot: str = SNAPSHOT
) -> dict[str, dict[str, Any]]:
    """Materialise assets in order, each in a run of its own; the metadata of each table."""
    told: dict[str, dict[str, Any]] = {}
    for asset in assets:
        names = {key.to_user_string() for key in asset.keys}
        by_topic = "snapshot" not in TABLES[min(names)].by
        result = dg.materialize(
            [asset],
            partition_key=topic if by_topic else multi_key(topic, snapshot),
            resources={"project": Project(root=str(root))},
            instance=dg.DagsterInstance.ephemeral(),
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,
        )
        for event in result.get_step_failure_events():
            failure = event.step_failure_data.user_failure_data
            raise AssertionError(failure.description if failure else event.step_failure_data.error)
        for event in result.get_asset_materialization_events():
            made = event.step_materialization_data.materialization
            told[made.asset_key.to_user_string()] = {name: entry.value for name, entry in made.metadata.items()}
    return told
