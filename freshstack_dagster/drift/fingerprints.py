"""Fingerprints of texts by winnowing, so that shared passages are found without comparing every two texts.

A text's words give overlapping runs of `RUN` words; of the hashes of every `WINDOW` neighbouring runs the smallest is
kept (Schleimer, Wilkerson and Aiken, "Winnowing", SIGMOD 2003). Any passage of `RUN + WINDOW - 1` words that two texts
share is then found, wherever it stands, and about one hash in five has to be stored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

RUN = 4
WINDOW = 6
WORD = r"[\p{L}\p{N}_]+"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BATCH_CHARACTERS = 4_000_000

Hashes = npt.NDArray[np.uint64]


def fingerprints(texts: pl.DataFrame) -> pl.DataFrame:
    """The distinct fingerprints of each text.

    In: `key` (integer) and `text`. Out: `key` and `fingerprint` (UInt64), unsorted. A text of fewer than `RUN` words
    is one run; a text without words has no row.
    """
    empty = pl.DataFrame(schema={"key": pl.UInt32(), "fingerprint": pl.UInt64()})
    batches = [_fingerprint(batch) for batch in _batches(texts)]
    return pl.concat([empty, *batches])


def _batches(texts: pl.DataFrame) -> list[pl.DataFrame]:
    """Slices of bounded size, because a text's words take many times its bytes."""
    numbered = texts.with_columns(batch=pl.col("text").str.len_chars().cum_sum() // _BATCH_CHARACTERS)
    return numbered.partition_by("batch", include_key=False)


def _fingerprint(texts: pl.DataFrame) -> pl.DataFrame:
    words = texts.select(
        pl.col("key").cast(pl.UInt32), words=pl.col("text").str.to_lowercase().str.extract_all(WORD)
    ).filter(pl.col("words").list.len() > 0)
    counts = words["words"].list.len().to_numpy().astype(np.int64)
    if not len(counts):
        return pl.DataFrame(schema={"key": pl.UInt32(), "fingerprint": pl.UInt64()})
    hashes = words["words"].explode().hash(seed=7).to_numpy()
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    runs, owners = _runs(hashes, counts, starts)
    kept, owners = _winnow(runs, owners)
    frame = pl.DataFrame({"owner": owners.astype(np.uint32), "fingerprint": kept}).unique()
    keys = words["key"].to_numpy()
    return frame.select(key=pl.Series(keys[frame["owner"].to_numpy()], dtype=pl.UInt32), fingerprint="fingerprint")


def _runs(hashes: Hashes, counts: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> tuple[Hashes, Hashes]:
    """Hash of each run of words, and the text it belongs to; a shorter text is one run of all its words."""
    padded = np.concatenate([hashes, np.zeros(RUN, dtype=np.uint64)])
    owners = np.repeat(np.arange(len(counts)), counts)
    ends = np.repeat(starts + counts, counts)
    positions = np.arange(len(hashes))
    combined = np.zeros(len(hashes), dtype=np.uint64)
    for offset in range(RUN):
        # Words beyond the text's end count as zero, which only short texts ever meet.
        word = np.where(positions + offset < ends, padded[offset : offset + len(hashes)], np.uint64(0))
        combined = (combined * _FACTOR) ^ (word + np.uint64(offset))
    whole = (positions + RUN <= ends) | (positions == np.repeat(starts, counts))
    return combined[whole] * _FACTOR, owners[whole].astype(np.uint64)


def _winnow(runs: Hashes, owners: Hashes) -> tuple[Hashes, Hashes]:
    """The smallest hash of every window that lies within one text; texts shorter than a window keep their smallest."""
    least, first_of_text = runs, np.concatenate([[True], owners[1:] != owners[:-1]])
    for offset in range(1, WINDOW):
        ahead = np.concatenate([runs[offset:], np.full(min(offset, len(runs)), np.iinfo(np.uint64).max, np.uint64)])
        owner = np.concatenate([owners[offset:], np.full(min(offset, len(runs)), np.iinfo(np.uint64).max, np.uint64)])
        least = np.minimum(least, np.where(owner == owners, ahead, np.iinfo(np.uint64).max))
    last = np.concatenate(
        [owners[WINDOW - 1 :], np.full(min(WINDOW - 1, len(runs)), np.iinfo(np.uint64).max, np.uint64)]
    )
    complete = (last == owners) | first_of_text
    return least[complete], owners[complete]
