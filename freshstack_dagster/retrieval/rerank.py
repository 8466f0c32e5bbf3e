"""Rerankers: the top of a run scored again by a model that reads query and passage together."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from freshstack_dagster.errors import ModelError, SchemaError, SettingsError
from freshstack_dagster.retrieval.base import Progress
from freshstack_dagster.retrieval.fuse import FUSION, base_runs, ranked
from freshstack_dagster.settings import ModelRole, Reranker, Topic
from freshstack_dagster.tables import TABLES

if TYPE_CHECKING:
    from freshstack_dagster.language_models import Models

SERVICES = {
    "voyage": ("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "cohere": ("https://api.cohere.com/v2", "COHERE_API_KEY"),
}
_COMMON = {"retrievers", "variants"}
_OPTIONS = {
    "cross_encoder": {"batch_size", "device", "max_length", "revision", "trust_remote_code"},
    "api": {"provider", "timeout"},
    "llm": {"provider", "window", "step", "max_passage_characters", "temperature", "max_output_tokens", "attempts"},
}
# Options that leave a pair's score as it is.
_SILENT = _COMMON | {"batch_size", "device", "timeout"}


class Scorer(Protocol):
    """Scores passages for a query, higher is better."""

    def score(self, question_id: str, query: str, passages: Sequence[str]) -> list[float]:
        """One score a passage, in their order."""
        ...


def rerank(
    runs: pl.DataFrame,
    queries: pl.DataFrame,
    chunks: pl.DataFrame,
    topic: Topic,
    *,
    cache: Path,
    progress: Progress | None = None,
    report: dict[str, Any] | None = None,
    models: Models | None = None,
) -> pl.DataFrame:
    """Rows of `runs` with retriever `{base}+{reranker}`: the first `depth` of each base list in the reranker's order.

    `runs` are first-stage rankings and their fusion, `queries` (question_id, variant, text) and `chunks` (doc_id,
    content_hash, text) those they were made from. By default every retriever's run of variant `question` is reranked,
    the fusion included (FreshStack, Figure 3: each model alone and with the reranker over its top 50); a reranker's
    options `retrievers` and `variants` choose others. What ranks below `depth` is left out. Pointwise scores are kept
    under `cache` by model, query and content, so a pair is scored once. `models` are the run's language models.

    Raises SettingsError for settings that do not fit, ModelError if a model fails for good.
    """
    parts = [TABLES["runs"].empty()]
    text_of = _texts(chunks)
    query_of = {(q, v): t for q, v, t in queries.select("question_id", "variant", "text").iter_rows()}
    bases = pl.concat([base_runs(runs), runs.filter(pl.col("retriever") == FUSION)])
    for reranker in topic.rerankers:
        chosen = _chosen(bases, reranker)
        scorer = open_scorer(reranker, topic, cache=cache, models=models)
        counts: dict[str, Any] = {"kind": reranker.kind, "model": reranker.model, "lists": 0, "pairs": 0}
        if report is not None:
            report[reranker.name] = counts
        lists = ranked(chosen, reranker.depth).partition_by("variant", "retriever", "question_id")
        for done, part in enumerate(lists, start=1):
            parts.append(_reranked(part, reranker, scorer, query_of, text_of))
            counts["lists"] += 1
            counts["pairs"] += part.height
            if progress is not None:
                progress(f"{reranker.name}: reranking", done, len(lists))
        counts.update({name: getattr(scorer, name) for name in ("scored", "truncated") if hasattr(scorer, name)})
    return ranked(pl.concat(parts))


def open_scorer(reranker: Reranker, topic: Topic, *, cache: Path, models: Models | None = None) -> Scorer:
    """The scorer of a reranker; pointwise ones remember their scores under `cache`."""
    unknown = sorted(set(reranker.options) - _COMMON - _OPTIONS[reranker.kind])
    if unknown:
        allowed = ", ".join(sorted(_COMMON | _OPTIONS[reranker.kind]))
        raise SettingsError(f"reranker {reranker.name}: unknown options {unknown}; {reranker.kind} takes {allowed}")
    if reranker.kind == "llm":
        return Listwise(reranker, topic, cache=cache, models=models)
    opener: Callable[[Reranker], PointwiseModel] = CrossEncoderModel if reranker.kind == "cross_encoder" else RerankApi
    telling = sorted((name, value) for name, value in reranker.options.items() if name not in _SILENT)
    identity = f"{reranker.kind} {reranker.model} {reranker.base_url} {telling}"
    folder = cache / "rerank" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    return Remembered(lambda: opener(reranker), folder)


def _reranked(
    part: pl.DataFrame,
    reranker: Reranker,
    scorer: Scorer,
    query_of: dict[tuple[str, str], str],
    text_of: dict[str, str],
) -> pl.DataFrame:
    question, variant, base = part.row(0)[0], part.row(0)[1], part.row(0)[2]
    if (question, variant) not in query_of:
        raise SchemaError(f"reranker {reranker.name}: question {question} has no query of variant {variant}")
    documents = part["doc_id"].to_list()
    absent = [doc_id for doc_id in documents if doc_id not in text_of]
    if absent:
        raise SchemaError(f"reranker {reranker.name}: document {absent[0]} of a run is not among the chunks")
    scores = scorer.score(question, query_of[question, variant], [text_of[doc_id] for doc_id in documents])
    if len(scores) != len(documents) or not np.isfinite(scores).all():
        raise ModelError(
            f"reranker {reranker.name}: question {question}: {len(scores)} usable scores for {len(documents)} documents"
        )
    return part.with_columns(retriever=pl.lit(f"{base}+{reranker.name}"), score=pl.Series(scores, dtype=pl.Float64))


def _chosen(bases: pl.DataFrame, reranker: Reranker) -> pl.DataFrame:
    names, variants = reranker.options.get("retrievers"), reranker.options.get("variants", ["question"])
    there = set(bases["retriever"].unique())
    if names is not None and (missing := sorted(set(names) - there)) and bases.height:
        raise SettingsError(
            f"reranker {reranker.name}: option retrievers names {missing}; the runs have {', '.join(sorted(there))}"
        )
    chosen = bases.filter(pl.col("variant").is_in(list(variants)))
    return chosen if names is None else chosen.filter(pl.col("retriever").is_in(list(names)))


def _texts(chunks: pl.DataFrame) -> dict[str, str]:
    return dict(chunks.select("doc_id", "text").iter_rows())


class PointwiseModel(Protocol):
    """A model that scores pairs one by one."""

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """One score a passage, in their order."""
        ...


class Remembered:
    """A pointwise model whose scores are kept by query and passage; it is opened only if a pair is new.

    `scored` counts the pairs that the model scored in this run.
    """

    def __init__(self, opener: Callable[[], PointwiseModel], folder: Path) -> None:
        self._opener, self._folder = opener, folder
        self._model: PointwiseModel | None = None
        self._known: dict[bytes, float] = {}
        self.scored = 0
        for file in sorted(folder.glob("*.parquet")):
            self._known.update(pl.read_parquet(file).iter_rows())

    @property
    def truncated(self) -> int | None:
        """Pairs of this run that were cut to the model's length, None if the model does not say."""
        return getattr(self._model, "truncated", None)

    def score(self, question_id: str, query: str, passages: Sequence[str]) -> list[float]:
        """As `Scorer.score`."""
        keys = [_pair(query, passage) for passage in passages]
        new = {key: passage for key, passage in zip(keys, passages, strict=True) if key not in self._known}
        if new:
            if self._model is None:
                self._model = self._opener()
            scores = self._model.score(query, list(new.values()))
            if len(scores) != len(new):
                raise ModelError(
                    f"question {question_id}: the reranker gave {len(scores)} scores for {len(new)} passages"
                )
            self._keep(list(new), scores)
            self.scored += len(new)
        return [self._known[key] for key in keys]

    def _keep(self, keys: list[bytes], scores: list[float]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{secrets.token_hex(8)}.parquet"
        frame = pl.DataFrame({"pair": keys, "score": scores}, schema={"pair": pl.Binary, "score": pl.Float64})
        frame.write_parquet(self._folder / f".{name}")
        os.replace(self._folder / f".{name}", self._folder / name)
        self._known.update(zip(keys, scores, strict=True))


def _pair(query: str, passage: str) -> bytes:
    digest = hashlib.sha256(hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest())
    digest.update(passage.encode("utf-8", "surrogatepass"))
    return digest.digest()


class CrossEncoderModel:
    """A sentence-transformers cross-encoder. `truncated` counts pairs longer than what it reads."""

    def __init__(self, reranker: Reranker, model: Any = None) -> None:
        self._reranker, self.truncated = reranker, 0
        options = reranker.options
        if model is None:
            try:
                from sentence_transformers import CrossEncoder
            except ImportError as error:
                raise SettingsError(
                    f"reranker {reranker.name}: kind cross_encoder needs sentence-transformers; "
                    "install it with pip install 'freshstack-dagster[dense]'"
                ) from error
            try:
                model = CrossEncoder(
                    reranker.model,
                    device=options.get("device"),
                    max_length=options.get("max_length"),
                    revision=options.get("revision"),
                    trust_remote_code=bool(options.get("trust_remote_code", False)),
                )
            except Exception as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise SettingsError(
                    f"reranker {reranker.name}: model {reranker.model} cannot be loaded: {first}"
                ) from error
        self._model = model

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """As `PointwiseModel.score`."""
        pairs = [(query, passage) for passage in passages]
        limit, tokenizer = getattr(self._model, "max_length", None), getattr(self._model, "tokenizer", None)
        if limit and tokenizer is not None:
            ids = tokenizer([query] * len(pairs), list(passages), truncation=False, verbose=False)["input_ids"]
            self.truncated += sum(len(tokens) > limit for tokens in ids)
        batch = int(self._reranker.options.get("batch_size", 32))
        scores = self._model.predict(pairs, batch_size=batch, show_progress_bar=False)
        return [float(score) for score in np.asarray(scores, dtype=np.float64).reshape(len(pairs))]


class RerankApi:
    """A rerank service: Cohere (default) or Voyage, or a server that speaks the protocol of one."""

    def __init__(self, reranker: Reranker) -> None:
        from freshstack_dagster.retrieval.http import Service

        self._reranker = reranker
        self._provider = reranker.options.get("provider", "voyage" if "rerank-2" in reranker.model else "cohere")
        if self._provider not in SERVICES:
            raise SettingsError(
                f"reranker {reranker.name}: provider {self._provider} is not one of {', '.join(SERVICES)}"
            )
        url, variable = SERVICES[self._provider]
        self._service = Service(
            f"reranker {reranker.name}",
            base_url=reranker.base_url,
            default_url=url,
            key_variable=reranker.api_key_env,
            default_key_variable=variable,
            timeout=float(reranker.options.get("timeout", 120)),
        )

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """As `PointwiseModel.score`."""
        body: dict[str, Any] = {"model": self._reranker.model, "query": query, "documents": list(passages)}
        if self._provider == "voyage":
            results = self._service.post("rerank", {**body, "truncation": True}).get("data")
        else:
            results = self._service.post("rerank", {**body, "top_n": len(passages)}).get("results")
        try:
            scores = {item["index"]: float(item["relevance_score"]) for item in results or []}
        except (TypeError, KeyError, ValueError):
            scores = {}
        if set(scores) != set(range(len(passages))) or len(results or []) != len(passages):
            raise ModelError(
                f"reranker {self._reranker.name}: the service did not score each of {len(passages)} passages once"
            )
        return [scores[number] for number in range(len(passages))]


_SYSTEM = (
    "You order passages of source code and technical documentation by how well each answers a question. "
    "Passages that state what the question needs come first; passages that only share words with it come last."
)


class Listwise:
    """A language model that orders passages in overlapping windows from the bottom of the list to its top.

    The way of RankGPT (Sun et al. 2023, arXiv 2304.09542, section 3.2): windows of `window` passages, each `step`
    higher than the last. A reply must name every passage of its window once; anything else is asked for again and then
    an error. The score is 1 / place.
    """

    def __init__(self, reranker: Reranker, topic: Topic, *, cache: Path, models: Models | None) -> None:
        from freshstack_dagster.language_models import Models as LanguageModels

        options = reranker.options
        self._reranker = reranker
        self._window, self._step = int(options.get("window", 20)), int(options.get("step", 10))
        self._characters = int(options.get("max_passage_characters", 4000))
        if not 1 <= self._step <= self._window or self._window < 2:
            raise SettingsError(f"reranker {reranker.name}: step must be from 1 to window, and window at least 2")
        role = ModelRole(
            provider=options.get("provider", "compatible" if reranker.base_url else "openai"),
            model=reranker.model,
            base_url=reranker.base_url,
            api_key_env=reranker.api_key_env,
            temperature=options.get("temperature"),
            max_output_tokens=int(options.get("max_output_tokens", 4096)),
            attempts=int(options.get("attempts", 3)),
        )
        models = models or LanguageModels(cache=cache / "language_models", budget=topic.budget)
        self._caller = models.role(f"reranker {reranker.name}", role)
        self.truncated = 0

    def score(self, question_id: str, query: str, passages: Sequence[str]) -> list[float]:
        """As `Scorer.score`."""
        from freshstack_dagster.language_models import run

        self.truncated += sum(len(passage) > self._characters for passage in passages)
        [order] = run([self._order(question_id, query, passages)])
        places = {passage: place for place, passage in enumerate(order, start=1)}
        return [1.0 / places[number] for number in range(len(passages))]

    async def _order(self, question_id: str, query: str, passages: Sequence[str]) -> list[int]:
        order = list(range(len(passages)))
        for start, end in _windows(len(order), self._window, self._step):
            inside = order[start:end]
            ranking = await self._ask(question_id, query, [passages[number] for number in inside], f"{start}-{end}")
            order[start:end] = [inside[number - 1] for number in ranking]
        return order

    async def _ask(self, question_id: str, query: str, passages: list[str], window: str) -> list[int]:
        from freshstack_dagster.language_models import ReplyError, Request

        count = len(passages)

        def read(data: dict[str, Any]) -> list[int]:
            ranking = data["ranking"]
            if sorted(ranking) != list(range(1, count + 1)):
                raise ReplyError(f"the ranking must hold each of 1 to {count} once; it is {ranking}")
            return ranking

        shown = "\n\n".join(f"[{n}]\n{text[: self._characters]}" for n, text in enumerate(passages, start=1))
        numbers = {"type": "array", "items": {"type": "integer"}}
        request = Request(
            id=f"{question_id} {self._reranker.name} {window}",
            task="rerank",
            system=_SYSTEM,
            user=(
                f"Question:\n{query}\n\nPassages:\n\n{shown}\n\n"
                f"Give the numbers of all {count} passages, best first, each once."
            ),
            schema={
                "type": "object",
                "properties": {"ranking": numbers},
                "required": ["ranking"],
                "additionalProperties": False,
            },
            prompt=hashlib.sha256(_SYSTEM.encode()).hexdigest()[:16],
            question_id=question_id,
        )
        outcome = await self._caller.call(request, read)
        if outcome.value is None:
            raise ModelError(f"reranker {self._reranker.name}: {outcome.error}")
        return outcome.value


def _windows(count: int, window: int, step: int) -> Iterator[tuple[int, int]]:
    """Windows over places 0 to count, from the last up to the first, neighbours overlapping by window - step."""
    end = count
    while end > 0:
        start = max(0, end - window)
        if end - start > 1:
            yield start, end
        if start == 0:
            return
        end -= step
