"""Embeddings from a service: OpenAI and everything that speaks its protocol, Voyage, Cohere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from freshstack_dagster.errors import ModelError, SettingsError
from freshstack_dagster.retrieval.base import Corpus, Workspace
from freshstack_dagster.retrieval.dense import EmbeddingRetrieval, Kind, stored_type
from freshstack_dagster.retrieval.http import Service
from freshstack_dagster.retrieval.presets import Preset, resolve
from freshstack_dagster.settings import Retriever

PROVIDERS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "voyage": ("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "cohere": ("https://api.cohere.com/v2", "COHERE_API_KEY"),
}
# What every provider takes in one request: Cohere's 96 texts; about 100,000 tokens, of at least 3 bytes on the whole.
BATCH_TEXTS = 96
BATCH_BYTES = 240_000
_OPTIONS = {"concurrency", "dtype", "normalize", "provider", "timeout"}


class ApiEncoder:
    """An embedding service as `Encoder`. `tokens` counts what the service says it read."""

    def __init__(
        self, service: Service, settings: Preset, *, dimensions: int | None = None, concurrency: int = 4
    ) -> None:
        self._service, self._settings = service, settings
        self._dimensions, self._concurrency = dimensions, concurrency
        self.max_length = settings.max_length
        self.chunk_size = BATCH_TEXTS * concurrency
        self.tokens = 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `Encoder.identity`; the address counts, since two servers may call different models by one name."""
        settings = self._settings
        return {
            "provider": settings.provider,
            "url": self._service.url,
            "model": settings.model,
            "prompt": settings.passage_prompt,
            "max_length": settings.max_length,
            "dimensions": self._dimensions,
            "normalize": settings.normalize,
        }

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        """As `Encoder.truncated`, counted in tokens of cl100k_base: other tokenizers differ by some percent."""
        return [self._cut(self._prompted(text, kind))[1] for text in texts]

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """As `Encoder.encode`. Raises ModelError if the service does not answer for every text."""
        ready = [self._cut(self._prompted(text, kind))[0] for text in texts]
        batches = list(_batches(ready))
        with ThreadPoolExecutor(self._concurrency) as pool:
            replies = list(pool.map(lambda batch: self._ask(batch, kind), batches))
        self.tokens += sum(tokens for _, tokens in replies)
        vectors = np.concatenate([vectors for vectors, _ in replies])
        if self._settings.normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        return vectors

    def _ask(self, texts: list[str], kind: Kind) -> tuple[np.ndarray, int]:
        model, dimensions = self._settings.model, self._dimensions
        match self._settings.provider:
            case "voyage":
                body: dict[str, Any] = {"model": model, "input": texts, "truncation": True}
                body["input_type"] = "query" if kind == "query" else "document"
                body |= {"output_dimension": dimensions} if dimensions else {}
                return self._indexed(self._service.post("embeddings", body), len(texts))
            case "cohere":
                body = {"model": model, "texts": texts, "truncate": "END", "embedding_types": ["float"]}
                body["input_type"] = "search_query" if kind == "query" else "search_document"
                body |= {"output_dimension": dimensions} if dimensions else {}
                reply = self._service.post("embed", body)
                embeddings = reply.get("embeddings")
                rows = embeddings.get("float") if isinstance(embeddings, dict) else None
                usage = reply.get("meta", {}).get("billed_units", {}).get("input_tokens", 0)
                return self._matrix(rows, len(texts)), int(usage or 0)
            case _:
                body = {"model": model, "input": texts, "encoding_format": "float"}
                body |= {"dimensions": dimensions} if dimensions else {}
                return self._indexed(self._service.post("embeddings", body), len(texts))

    def _indexed(self, reply: dict[str, Any], count: int) -> tuple[np.ndarray, int]:
        """Rows of a reply in the order of the texts, whatever the order they came in."""
        data = reply.get("data")
        if not isinstance(data, list) or sorted(item.get("index", -1) for item in data) != list(range(count)):
            raise ModelError(f"{self._service.what}: {self._service.url} did not answer for each of {count} texts once")
        rows = [item.get("embedding") for item in sorted(data, key=lambda item: item["index"])]
        return self._matrix(rows, count), int((reply.get("usage") or {}).get("total_tokens", 0) or 0)

    def _matrix(self, rows: Any, count: int) -> np.ndarray:
        try:
            matrix = np.array(rows, dtype=np.float32)
        except (TypeError, ValueError):
            matrix = np.empty(0, np.float32)
        if matrix.ndim != 2 or len(matrix) != count or not np.isfinite(matrix).all():
            raise ModelError(f"{self._service.what}: {self._service.url} gave no {count} vectors of one length")
        return matrix

    def _prompted(self, text: str, kind: Kind) -> str:
        # Services refuse empty inputs.
        return (self._settings.query_prompt if kind == "query" else self._settings.passage_prompt) + text or " "

    def _cut(self, text: str) -> tuple[str, bool]:
        """The text cut to the maximum length, and whether it was."""
        limit = self.max_length
        if limit is None or len(text.encode("utf-8", "replace")) <= limit:
            return text, False
        from freshstack_dagster.corpus.tokens import token_ends

        ends = token_ends(text)
        if len(ends) <= limit:
            return text, False
        return text.encode()[: int(ends[limit - 1])].decode("utf-8", "ignore"), True


def open_api(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> EmbeddingRetrieval:
    """An embeddings endpoint by `preset` or `model`; option `provider` is openai (default), voyage or cohere.

    `base_url` names another server of the same protocol, `api_key_env` the variable that holds its key. Other options:
    concurrency, timeout in seconds, dtype, normalize. Raises SettingsError for settings that do not fit or a missing
    key, ModelError if the service fails for good.
    """
    unknown = sorted(set(retriever.options) - _OPTIONS)
    if unknown:
        raise SettingsError(
            f"retriever {retriever.name}: unknown options {unknown}; api takes {', '.join(sorted(_OPTIONS))}"
        )
    encoder = make_encoder(retriever)
    retrieval = EmbeddingRetrieval(encoder, corpus, workspace, dtype=stored_type(retriever))
    workspace.report["service_tokens"] = encoder.tokens
    return retrieval


def make_encoder(retriever: Retriever) -> ApiEncoder:
    """The encoder of a retriever of kind `api`."""
    settings = resolve(retriever)
    provider = settings.provider or "openai"
    if provider not in PROVIDERS:
        raise SettingsError(f"retriever {retriever.name}: provider {provider} is not one of {', '.join(PROVIDERS)}")
    url, variable = PROVIDERS[provider]
    service = Service(
        f"retriever {retriever.name}",
        base_url=retriever.base_url,
        default_url=url,
        key_variable=retriever.api_key_env,
        default_key_variable=variable,
        timeout=float(retriever.options.get("timeout", 120)),
    )
    return ApiEncoder(
        service,
        settings,
        dimensions=retriever.dimensions,
        concurrency=int(retriever.options.get("concurrency", 4)),
    )


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode("utf-8", "replace"))
        if batch and (len(batch) == BATCH_TEXTS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += length
    if batch:
        yield batch
