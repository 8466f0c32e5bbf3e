"""Late interaction (ColBERT) through PyLate: a vector a token, MaxSim over a PLAID index."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.retrieval.base import Corpus, Workspace, building, used
from freshstack_dagster.retrieval.presets import resolve
from freshstack_dagster.retrieval.topk import EMPTY, Ranking
from freshstack_dagster.settings import Retriever

_OPTIONS = {"batch_size", "device", "normalize", "passage_options", "query_options", "revision", "trust_remote_code"}


class MultiVectorRetrieval:
    """A PyLate model over its index. PLAID is approximate in its candidates; the scores of those are MaxSim."""

    def __init__(self, model: Any, searcher: Any, batch: int) -> None:
        self._model, self._searcher, self._batch = model, searcher, batch

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        """As `Retrieval.search`; a query without a letter or digit finds nothing."""
        asked = [number for number, query in enumerate(queries) if re.search(r"\w", query)]
        rankings = [EMPTY] * len(queries)
        if asked:
            vectors = self._model.encode(
                [queries[number] for number in asked], is_query=True, batch_size=self._batch, show_progress_bar=False
            )
            results = self._searcher.retrieve(queries_embeddings=vectors, k=depth)
            for number, found in zip(asked, results, strict=True):
                rows = np.array([int(item["id"]) for item in found], dtype=np.int64)
                scores = np.array([float(item["score"]) for item in found], dtype=np.float64)
                order = np.lexsort((rows, -scores))[:depth]
                rankings[number] = Ranking(rows[order], scores[order])
        return rankings


def open_multi_vector(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> MultiVectorRetrieval:
    """A ColBERT model by `preset` or `model`, its index cached by the corpus' content and the model.

    Raises SettingsError if PyLate is not installed or an option is unknown.
    """
    unknown = sorted(set(retriever.options) - _OPTIONS)
    if unknown:
        raise SettingsError(
            f"retriever {retriever.name}: unknown options {unknown}; multi_vector takes {', '.join(sorted(_OPTIONS))}"
        )
    settings = resolve(retriever)
    try:
        from pylate import indexes, models, retrieve
    except ImportError as error:
        raise SettingsError(
            f"retriever {retriever.name}: kind multi_vector needs PyLate; install it with pip install pylate"
        ) from error
    length, batch = settings.max_length or 2048, int(retriever.options.get("batch_size", 32))
    model = models.ColBERT(
        model_name_or_path=settings.model,
        query_length=length,
        document_length=length,
        device=retriever.options.get("device"),
        revision=retriever.options.get("revision"),
        trust_remote_code=settings.trust_remote_code,
    )
    identity = f"{corpus.fingerprint} {settings.model} {retriever.options.get('revision')} {length}"
    folder = workspace.cache / "multi_vector" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    began, outcome = time.perf_counter(), "loaded"
    if not folder.is_dir():
        outcome = "indexed"
        with building(folder) as temporary:
            index = indexes.PLAID(index_folder=str(temporary), index_name="index", override=True)
            vectors = []
            for start in range(0, len(corpus), 8 * batch):
                texts = corpus.texts[start : start + 8 * batch]
                vectors.extend(model.encode(texts, is_query=False, batch_size=batch, show_progress_bar=False))
                workspace.tell("embedding", min(len(corpus), start + 8 * batch), len(corpus))
            index.add_documents(documents_ids=[str(row) for row in range(len(corpus))], documents_embeddings=vectors)
    used(folder)
    index = indexes.PLAID(index_folder=str(folder), index_name="index", override=False)
    workspace.report.update(
        documents=len(corpus), index=outcome, index_seconds=time.perf_counter() - began, max_length=length
    )
    return MultiVectorRetrieval(model, retrieve.ColBERT(index=index), batch)
