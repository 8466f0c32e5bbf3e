"""Retrieval: lexical, latent semantic, dense and API retrievers, rerankers, fusion and pools."""

from freshstack_dagster.retrieval.base import Corpus, Opener, Retrieval, Workspace, prune
from freshstack_dagster.retrieval.fuse import fuse
from freshstack_dagster.retrieval.pools import build_pools
from freshstack_dagster.retrieval.retrieve import open_retriever, retrieve
from freshstack_dagster.retrieval.topk import Ranking

__all__ = [
    "Corpus",
    "Opener",
    "Ranking",
    "Retrieval",
    "Workspace",
    "build_pools",
    "fuse",
    "open_retriever",
    "prune",
    "retrieve",
]
