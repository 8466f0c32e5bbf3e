"""An exported collection is judged again: the same corpus gives its qrels back, a later month gives new ones."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import yaml

from freshstack_dagster_tests.operations.conftest import Project

AGAIN = "again"
FACT = ["question_id", "text"]
KEY = ["question_id", "doc_id", "relevance"]


def test_an_exported_collection_is_judged_again_on_its_month_and_on_a_later_one(
    demo: Project, new_project: Callable[..., Project]
):
    project = new_project()
    queries = project.root / "published" / "queries.parquet"
    demo.run("freshstack-dagster", "export", "sample", "2024-10", "--to", str(queries.parent))
    topics = project.root / "data" / "topics"
    topic = yaml.safe_load((topics / "sample.yaml").read_text())
    topic["questions"] = {"kind": "collection", "path": str(queries), "nuggets": "published"}
    del topic["asked_from"]
    (topics / f"{AGAIN}.yaml").write_text(yaml.safe_dump(topic))
    project.run("freshstack-dagster", "build", "--no-drift", AGAIN, "2024-10", "2025-10")

    theirs, ours = demo.lake.read("qrels", "sample", "2024-10"), project.lake.read("qrels", AGAIN, "2024-10")
    kept = theirs["question_id"].unique()
    written = demo.lake.read("nuggets", "sample").filter(pl.col("question_id").is_in(kept.implode()))
    nuggets = project.lake.read("nuggets", AGAIN)
    assert nuggets.select(FACT).sort(FACT).equals(written.select(FACT).sort(FACT))
    assert nuggets["model"].unique().to_list() == ["published"]
    assert theirs.select(KEY).sort(KEY).equals(ours.select(KEY).sort(KEY))

    later = project.lake.read("question_outcomes", AGAIN, "2025-10")
    assert set(later["question_id"]) == set(kept)
    drifted = later.filter(later["outcome"] != "kept").height
    assert 0 < drifted < later.height
