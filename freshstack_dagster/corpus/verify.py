"""Do the offsets of chunks give back their text? Read anew from git, by none of the chunker's own arithmetic."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from freshstack_dagster.corpus.decode import decode
from freshstack_dagster.corpus.git import read_blobs
from freshstack_dagster.corpus.mirrors import open_mirror
from freshstack_dagster.corpus.notebook import read_notebook
from freshstack_dagster.settings import Topic

SAMPLE_FILES = 200
FROM_NOTEBOOK = "text extracted from the notebook"


def texts_that_differ(
    topic: Topic, files: pl.LazyFrame, chunks: pl.LazyFrame, mirrors: Path, *, sample: int = SAMPLE_FILES
) -> pl.DataFrame:
    """Compare the chunks of a sample of files with the bytes of their blobs.

    In: the tables `files` and `chunks` of a snapshot. Out: `doc_id` and `detail` of each chunk whose text is not
    exactly the decoded bytes between its offsets (of the extracted text for a notebook). The sample is the files with
    the smallest hashes of repository and path: the same each time, and spread over the corpus.
    """
    chosen = (
        files.filter(pl.col("chunks") > 0)
        .select("repository", "path", "blob", "encoding", "detail")
        .sort(pl.concat_str("repository", "path").hash(seed=0), "path")
        .head(sample)
        .collect()
    )
    cut = chunks.select("doc_id", "repository", "path", "start_byte", "end_byte", "text").join(
        chosen.lazy().select("repository", "path"), on=["repository", "path"], how="semi"
    )
    by_file = cut.collect().partition_by("repository", "path", as_dict=True)
    faults = []
    for repository in topic.repositories:
        of_repository = chosen.filter(pl.col("repository") == repository.alias)
        if of_repository.is_empty():
            continue
        mirror = open_mirror(repository, mirrors, fetch_until=None)
        blobs = read_blobs(mirror, of_repository["blob"])
        for file, (_, data) in zip(of_repository.iter_rows(named=True), blobs, strict=True):
            for chunk in by_file[repository.alias, file["path"]].iter_rows(named=True):
                if data is None:
                    faults.append((chunk["doc_id"], "the blob is missing"))
                elif _text_between(data, file, chunk["start_byte"], chunk["end_byte"]) != chunk["text"]:
                    faults.append((chunk["doc_id"], "the bytes between the offsets decode to another text"))
    return pl.DataFrame(faults, schema={"doc_id": pl.String(), "detail": pl.String()}, orient="row")


def _text_between(data: bytes, file: dict[str, str], start: int, end: int) -> str:
    if FROM_NOTEBOOK in file["detail"]:
        return read_notebook(decode(data).text).text.encode()[start:end].decode()
    return data[start:end].decode(file["encoding"])
