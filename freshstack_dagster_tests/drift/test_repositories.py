from __future__ import annotations

from pathlib import Path

import polars as pl

from freshstack_dagster.drift.repositories import repository_shift


def _months(table: pl.DataFrame) -> tuple[dict, dict]:
    """Chunks and judgments that have the published counts."""
    chunks, judgments = {}, {}
    for year in (2024, 2025):
        documents, supported = [], []
        for row in table.iter_rows(named=True):
            alias = row["repository"].split("/")[1]
            ids = [f"{alias}/f_{i}_{i + 1}" for i in range(row[f"docs_{year}"])]
            documents += [(doc_id, alias) for doc_id in ids]
            supported += ids[: row[f"supporting_{year}"]]
        chunks[f"{year}-10"] = pl.DataFrame(documents, schema=["doc_id", "repository"], orient="row")
        judgments[f"{year}-10"] = pl.DataFrame({"doc_id": supported, "verdict": "supported"})
    return chunks, judgments


def test_published_table(shared: Path):
    """The second paper's Table 1: sums, and all twenty percentages to one decimal."""
    table = pl.read_csv(shared / "reference" / "driftbench_table1_repositories.csv")
    chunks, judgments = _months(table)
    shift = repository_shift(chunks, judgments, baseline="2024-10")
    sums = shift.group_by("snapshot").agg(pl.col("documents", "supporting").sum()).sort("snapshot").rows()
    assert sums == [("2024-10", 43558, 3931), ("2025-10", 39165, 3719)]
    for row in table.iter_rows(named=True):
        for year in (2024, 2025):
            ours = shift.filter(
                (pl.col("snapshot") == f"{year}-10") & (pl.col("repository") == row["repository"].split("/")[1])
            )
            assert round(100 * ours["supporting_share"].item(), 1) == row[f"supporting_pct_{year}"]


def test_a_renamed_repository_is_one_repository():
    chunks = {
        "2024-10": pl.DataFrame({"doc_id": ["old/a_0_1", "old/b_0_1"], "repository": ["old", "old"]}),
        "2025-10": pl.DataFrame({"doc_id": ["new/a_0_1"], "repository": ["new"]}),
    }
    shift = repository_shift(chunks, {}, baseline="2024-10", renamed={"old": "new"})
    assert shift.select("snapshot", "repository", "documents", "documents_growth").rows() == [
        ("2024-10", "new", 2, 0.0),
        ("2025-10", "new", 1, -0.5),
    ]


def test_a_repository_that_left_stays_in_the_table_with_zero():
    chunks = {
        "2024-10": pl.DataFrame({"doc_id": ["a/a_0_1", "b/b_0_1"], "repository": ["a", "b"]}),
        "2025-10": pl.DataFrame({"doc_id": ["a/a_0_1"], "repository": ["a"]}),
    }
    shift = repository_shift(chunks, {}, baseline="2024-10")
    gone = shift.filter((pl.col("snapshot") == "2025-10") & (pl.col("repository") == "b")).row(0, named=True)
    assert (gone["documents"], gone["documents_growth"], gone["supporting_growth"]) == (0, -1.0, None)


def test_a_month_in_which_nothing_was_judged_has_no_support_and_no_loss():
    chunks = {month: pl.DataFrame({"doc_id": ["a/x_0_1"], "repository": ["a"]}) for month in ("2024-10", "2025-10")}
    before = pl.DataFrame({"doc_id": ["a/x_0_1"], "verdict": ["supported"]})
    for after in (None, before.clear(), before.with_columns(verdict=pl.lit("error"))):
        judgments = {"2024-10": before} | ({} if after is None else {"2025-10": after})
        row = repository_shift(chunks, judgments, baseline="2024-10").filter(snapshot="2025-10").row(0, named=True)
        assert (row["documents"], row["documents_growth"]) == (1, 0)
        assert (row["supporting"], row["supporting_share"], row["supporting_growth"]) == (None, None, None)
    nothing = before.with_columns(verdict=pl.lit("unsupported"))
    row = repository_shift(chunks, {"2024-10": before, "2025-10": nothing}, baseline="2024-10").row(-1, named=True)
    assert (row["supporting"], row["supporting_growth"]) == (0, -1)
