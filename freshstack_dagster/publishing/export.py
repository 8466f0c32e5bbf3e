"""A snapshot's collection in the layouts that other tools read, each with a card that says what it is.

- `freshstack`: queries and corpus in Parquet, in the layout of the published collections;
- `beir`: corpus.jsonl, queries.jsonl and qrels/test.tsv, a document relevant if it supports any nugget;
- `trec`: topics, documents (JSON lines with `id` and `contents`, as Anserini reads them), nugget qrels as ndeval reads
  them (question, nugget number, document, relevance) and document qrels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from freshstack_dagster.errors import FreshstackError, LakeError
from freshstack_dagster.evaluation.runs import trec_word
from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Topic
from freshstack_dagster.stackexchange.collection import question_text

CARD = "README.md"
IDS = pl.List(pl.String())
NUGGET = pl.Struct(
    {"_id": pl.String(), "text": pl.String(), "relevant_corpus_ids": IDS, "non_relevant_corpus_ids": IDS}
)


@dataclass(frozen=True)
class Collection:
    """The kept questions of a topic's snapshot with their nuggets, qrels and the whole corpus."""

    topic: Topic
    snapshot: str
    questions: pl.DataFrame
    nuggets: pl.DataFrame
    qrels: pl.DataFrame
    commits: pl.DataFrame
    chunks: pl.LazyFrame

    @property
    def document_qrels(self) -> pl.DataFrame:
        """question_id, doc_id, relevance: the number of the question's nuggets that the document supports."""
        return self.qrels.group_by("question_id", "doc_id").agg(pl.col("relevance").sum()).sort("question_id", "doc_id")


def load(lake: Lake, topic: Topic, snapshot: str) -> Collection:
    """Read a collection from the lake. Raises LakeError if the snapshot is not built or no question was kept."""
    outcomes = lake.read("question_outcomes", topic.name, snapshot)
    kept = outcomes.filter(pl.col("outcome") == "kept").select("question_id")
    if kept.is_empty():
        raise LakeError(
            f"topic {topic.name}, snapshot {snapshot}: no question was kept, so there is nothing to export; "
            "see question_outcomes, or set `keep_partial`"
        )
    questions = lake.read("questions", topic.name).join(kept, on="question_id", how="semi")
    nuggets = lake.read("nuggets", topic.name).join(kept, on="question_id", how="semi")
    return Collection(
        topic,
        snapshot,
        questions.sort("question_id"),
        nuggets.sort("question_id", "position"),
        lake.read("qrels", topic.name, snapshot),
        lake.read("commits", topic.name, snapshot),
        lake.scan("chunks", topic.name, snapshot),
    )


def export(collection: Collection, layout: str, folder: Path) -> list[Path]:
    """Write a collection to `folder` and return its files. An earlier export there is replaced once all is written.

    Raises FreshstackError for an unknown layout, a folder that holds anything but such an export, or one that cannot
    be written; what stands there is then left as it was.
    """
    if layout not in LAYOUTS:
        raise FreshstackError(f"no layout {layout}; there are {', '.join(LAYOUTS)}")
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=folder) as name:
            temporary = Path(name)
            LAYOUTS[layout](collection, temporary)
            (temporary / CARD).write_text(card(collection, layout), encoding="utf-8")
            written = sorted(path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file())
            foreign = sorted({path.relative_to(folder) for path in _files(folder)} - set(written))
            if foreign:
                raise FreshstackError(
                    f"{folder}: holds {foreign[0]}, which is no part of a {layout} export; name a folder of its own"
                )
            for path in written:
                (folder / path).parent.mkdir(exist_ok=True)
                os.replace(temporary / path, folder / path)
    except OSError as error:
        raise FreshstackError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return [folder / path for path in written]


def _files(folder: Path) -> list[Path]:
    """Files below a folder, those of an export under way left out."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".export-")
    ]


def _freshstack(collection: Collection, folder: Path) -> None:
    def ids(relevance: int) -> pl.Expr:
        return pl.col("doc_id").filter(pl.col("relevance") == relevance).sort()

    judged = collection.qrels.group_by("nugget_id").agg(relevant_corpus_ids=ids(1), non_relevant_corpus_ids=ids(0))
    # Typed as lists of strings, also where the first nugget has none: a reader must not guess null.
    nuggets = (
        collection.nuggets.join(judged, on="nugget_id", how="left")
        .with_columns(pl.col("relevant_corpus_ids", "non_relevant_corpus_ids").fill_null(pl.lit([], dtype=IDS)))
        .group_by("question_id", maintain_order=True)
        .agg(
            nuggets=pl.struct(
                pl.col("nugget_id").alias("_id"), "text", "relevant_corpus_ids", "non_relevant_corpus_ids"
            )
        )
        .with_columns(pl.col("nuggets").cast(pl.List(NUGGET)))
    )
    queries = collection.questions.join(nuggets, on="question_id").select(
        query_id="question_id",
        query_title="title",
        query_text="body_text",
        nuggets="nuggets",
        answer_id="answer_id",
        answer_text="answer_text",
        metadata=pl.struct(
            tags="tags", date=pl.col("asked_at").dt.to_string("iso:strict"), url="url", license="license"
        ),
    )
    queries.write_parquet(folder / "queries.parquet")
    corpus = collection.chunks.select(
        _id="doc_id",
        text="text",
        metadata=pl.struct("url", "start_byte", "end_byte", "start_char", "end_char", "content_hash"),
    )
    corpus.sink_parquet(folder / "corpus.parquet")


def _beir(collection: Collection, folder: Path) -> None:
    (folder / "qrels").mkdir()
    documents = collection.chunks.select("doc_id", "path", "text").collect()
    _write_lines(
        folder / "corpus.jsonl",
        ({"_id": doc_id, "title": path, "text": text} for doc_id, path, text in documents.iter_rows()),
    )
    _write_lines(
        folder / "queries.jsonl",
        (
            {"_id": row["question_id"], "text": question_text(row["title"], row["body_text"])}
            for row in collection.questions.iter_rows(named=True)
        ),
    )
    qrels = collection.document_qrels.select(
        pl.col("question_id").alias("query-id"), pl.col("doc_id").alias("corpus-id"), score="relevance"
    )
    qrels.write_csv(folder / "qrels" / "test.tsv", separator="\t")


def _trec(collection: Collection, folder: Path) -> None:
    topics = (
        f"{trec_word(row['question_id'])}\t{' '.join(question_text(row['title'], row['body_text']).split())}\n"
        for row in collection.questions.iter_rows(named=True)
    )
    (folder / "topics.tsv").write_text("".join(topics), encoding="utf-8")
    documents = collection.chunks.select("doc_id", "text").collect()
    _write_lines(
        folder / "corpus.jsonl",
        ({"id": trec_word(doc_id), "contents": text} for doc_id, text in documents.iter_rows()),
    )
    numbered = collection.qrels.join(collection.nuggets.select("nugget_id", "position"), on="nugget_id").sort(
        "question_id", "position", "doc_id"
    )
    _write_trec(
        folder / "qrels.nuggets.txt", numbered.select("question_id", pl.col("position") + 1, "doc_id", "relevance")
    )
    flat = collection.document_qrels.select("question_id", pl.lit(0), "doc_id", "relevance")
    _write_trec(folder / "qrels.txt", flat)


def _write_trec(path: Path, rows: pl.DataFrame) -> None:
    """Four columns, a space between them."""
    lines = (" ".join(map(trec_word, row)) + "\n" for row in rows.iter_rows())
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)


def _write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


LAYOUTS: dict[str, Callable[[Collection, Path], None]] = {"freshstack": _freshstack, "beir": _beir, "trec": _trec}


def card(collection: Collection, layout: str) -> str:
    """A page that says what the files are, who judged, which commits they stand on, and the licences of the texts."""
    kinds = collection.qrels["judge_kind"].unique().sort().to_list()
    writers = collection.nuggets["model"].unique().sort().to_list()
    licenses = collection.questions["license"].drop_nulls().unique().sort().to_list()
    lines = [
        f"# {collection.topic.title}, {collection.snapshot}",
        "",
        f"{collection.questions.height} questions, {collection.nuggets.height} nuggets "
        f"(written by {', '.join(writers)}), {collection.qrels['relevance'].sum()} supporting pairs of "
        f"{collection.qrels.height} judged, in the layout `{layout}`.",
        "",
        f"Judged by: {', '.join(kinds)}.",
    ]
    if layout == "trec":
        lines += [
            "",
            "White space in ids is written as %20 and the like, a percent sign as %25; `score` reads them.",
        ]
    if "heuristic" in kinds:
        lines += ["", "**The heuristic is no judge. This is a trial of the pipeline and no benchmark.**"]
    lines += [
        "",
        f"Question and answer texts: {', '.join(licenses) or 'licence not stated by the source'}; each question's page "
        "is its attribution. Documents belong to their repositories, under their licences:",
        "",
        "| repository | commit | committed |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {row['name']} | {row['commit']} | {row['committed_at']:%Y-%m-%d} |"
        for row in collection.commits.iter_rows(named=True)
    ]
    return "\n".join(lines) + "\n"
