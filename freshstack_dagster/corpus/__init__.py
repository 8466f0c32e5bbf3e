"""The corpus: repositories at a month, cut into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshstack_dagster.corpus.chunk import Chunk, chunk_file

__all__ = ["Chunk", "chunk_file"]


def __getattr__(name: str) -> Any:
    # Lazily, so that reading a topic's repositories does not load what chunking needs.
    if name in __all__:
        from freshstack_dagster.corpus import chunk

        return getattr(chunk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
