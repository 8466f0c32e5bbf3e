"""Settings of known embedding models, by name, as their model cards and the papers ask.

A preset is turned on by naming it in a topic's retriever; every setting of the retriever itself goes before the
preset's. The instruction to models that take one is FreshStack's (its repository's example for Qwen3). Lengths are the
model's own limit, but no more than 8,192 tokens: chunks have 2,048 tokens of cl100k_base at most, and longer inputs
only cost memory. What is longer is cut, counted and reported.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.settings import Retriever

TASK = (
    "Given a technical question, retrieve relevant code snippets or technical documentation that best answer the "
    "question"
)
_INSTRUCT = f"Instruct: {TASK}\nQuery: "


@dataclass(frozen=True)
class Preset:
    """A model's settings.

    `pooling` says how the model makes one vector of its tokens; sentence-transformers reads it from the model itself,
    so it stands here to be seen. `checked` says which settings were compared with a source, and which; what it does not
    name is from memory. `query_options` and `passage_options` go to the model's `encode`. `trust_remote_code`
    means that the model brings code of its own, which runs when it is loaded.
    """

    kind: str
    model: str
    query_prompt: str = ""
    passage_prompt: str = ""
    max_length: int | None = None
    dimensions: int | None = None
    pooling: str = ""
    normalize: bool = True
    trust_remote_code: bool = False
    provider: str = ""
    query_options: dict[str, Any] = field(default_factory=dict)
    passage_options: dict[str, Any] = field(default_factory=dict)
    checked: str = ""


# Where settings were checked. The registry is that of MTEB (github.com/embeddings-benchmark/mteb, commit a905523d,
# mteb/models/model_implementations), which notes a model's longest input and its dimensions.
_REGISTRY = "length and dimensions: MTEB registry"

PRESETS: dict[str, Preset] = {
    "all-minilm-l6-v2": Preset(
        "dense",
        "sentence-transformers/all-MiniLM-L6-v2",
        max_length=256,
        dimensions=384,
        pooling="mean",
        checked="all: the packaged model's configuration",
    ),
    "bge-gemma2": Preset(
        "dense",
        "BAAI/bge-multilingual-gemma2",
        query_prompt=f"<instruct>{TASK}\n<query>",
        max_length=4096,
        dimensions=3584,
        pooling="last token",
        checked="length: sentence_bert_config.json at 6bdd9c7 (8192 before it); dimensions: config.json at 6922e63",
    ),
    "e5-mistral-7b": Preset(
        "dense",
        "intfloat/e5-mistral-7b-instruct",
        query_prompt=_INSTRUCT,
        max_length=4096,
        dimensions=4096,
        pooling="last token",
        checked="length: sliding window in config.json at 92ec9d6; prompt and dimensions: MTEB registry",
    ),
    **{
        f"qwen3-embedding-{size}": Preset(
            "dense",
            f"Qwen/Qwen3-Embedding-{size.upper()}",
            query_prompt=_INSTRUCT,
            max_length=8192,
            dimensions=dimensions,
            pooling="last token",
            checked=(
                "prompt: FreshStack's README (the MTEB registry has no space after Query:); pooling of 0.6b: a copy of "
                f"1_Pooling/config.json; {_REGISTRY} (32,768 tokens at most)"
            ),
        )
        for size, dimensions in (("0.6b", 1024), ("4b", 2560), ("8b", 4096))
    },
    # Trained on inputs of 512 tokens; the card advises against more.
    **{
        f"stella-{size}": Preset(
            "dense",
            f"NovaSearch/stella_en_{size.upper()}_v5",
            query_prompt=(
                "Instruct: Given a web search query, retrieve relevant passages that answer the query.\nQuery: "
            ),
            max_length=512,
            dimensions=1024,
            pooling="mean, then a dense layer",
            trust_remote_code=True,
            checked="prompt and dimensions: model card; length: sentence_bert_config.json",
        )
        for size in ("1.5b", "400m")
    },
    "gte-large-v1.5": Preset(
        "dense",
        "Alibaba-NLP/gte-large-en-v1.5",
        max_length=8192,
        dimensions=1024,
        pooling="first token",
        trust_remote_code=True,
        checked="length: card of the gte-v1.5 series",
    ),
    "gte-modernbert-base": Preset(
        "dense",
        "Alibaba-NLP/gte-modernbert-base",
        max_length=8192,
        dimensions=768,
        pooling="first token",
        checked=f"pooling: 1_Pooling/config.json; {_REGISTRY}",
    ),
    "granite-embedding-r2": Preset(
        "dense",
        "ibm-granite/granite-embedding-english-r2",
        max_length=8192,
        dimensions=768,
        pooling="first token",
        checked="length and dimensions: model card at 6743ff3",
    ),
    "granite-embedding-r2-small": Preset(
        "dense",
        "ibm-granite/granite-embedding-small-english-r2",
        max_length=8192,
        dimensions=384,
        pooling="first token",
        checked=_REGISTRY,
    ),
    "jina-v4": Preset(
        "dense",
        "jinaai/jina-embeddings-v4",
        max_length=8192,
        dimensions=2048,
        pooling="mean",
        trust_remote_code=True,
        query_options={"task": "retrieval", "prompt_name": "query"},
        passage_options={"task": "retrieval", "prompt_name": "passage"},
        checked="options: MTEB registry, dimensions: jina.ai/models; it reads up to 32,768 tokens",
    ),
    "voyage-4-nano": Preset(
        "dense",
        "voyageai/voyage-4-nano",
        query_prompt="Represent the query for retrieving supporting documents: ",
        passage_prompt="Represent the document for retrieval: ",
        max_length=8192,
        dimensions=2048,
        pooling="mean",
        trust_remote_code=True,
        checked=f"prompts: Voyage's API documentation; {_REGISTRY} (32,000 tokens at most)",
    ),
    "nomic-embed-code": Preset(
        "dense",
        "nomic-ai/nomic-embed-code",
        query_prompt="Represent this query for searching relevant code: ",
        max_length=8192,
        dimensions=3584,
        pooling="last token",
        checked=f"{_REGISTRY} (32,768 tokens at most)",
    ),
    "coderankembed": Preset(
        "dense",
        "nomic-ai/CodeRankEmbed",
        query_prompt="Represent this query for searching relevant code: ",
        max_length=8192,
        dimensions=768,
        pooling="first token",
        trust_remote_code=True,
        checked="prompt and length: model card",
    ),
    "arctic-embed-l-v2": Preset(
        "dense",
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        query_prompt="query: ",
        max_length=8192,
        dimensions=1024,
        pooling="first token",
        checked=_REGISTRY,
    ),
    "embeddinggemma-300m": Preset(
        "dense",
        "google/embeddinggemma-300m",
        query_prompt="task: search result | query: ",
        passage_prompt="title: none | text: ",
        max_length=2048,
        dimensions=768,
        pooling="mean, then dense layers",
        checked=_REGISTRY,
    ),
    "gte-moderncolbert": Preset(
        "multi_vector",
        "lightonai/GTE-ModernColBERT-v1",
        max_length=2048,
        dimensions=128,
        pooling="none, a token each",
        checked=f"{_REGISTRY} (8,192 tokens at most)",
    ),
    "voyage-large-2": Preset(
        "api", "voyage-large-2", max_length=16_000, dimensions=1536, provider="voyage", checked=_REGISTRY
    ),
    "voyage-code-3": Preset(
        "api", "voyage-code-3", max_length=32_000, dimensions=1024, provider="voyage", checked=_REGISTRY
    ),
    "openai-3-small": Preset(
        "api", "text-embedding-3-small", max_length=8191, dimensions=1536, provider="openai", checked=_REGISTRY
    ),
    "openai-3-large": Preset(
        "api", "text-embedding-3-large", max_length=8191, dimensions=3072, provider="openai", checked=_REGISTRY
    ),
    "cohere-embed-v4": Preset(
        "api",
        "embed-v4.0",
        dimensions=1536,
        provider="cohere",
        checked="dimensions: Amazon Bedrock's documentation; it reads up to 128,000 tokens",
    ),
}


def resolve(retriever: Retriever) -> Preset:
    """The settings of a retriever: its own, then its preset's, then none.

    Raises SettingsError for an unknown preset, one of another kind, or a retriever without model.
    """
    base = Preset(retriever.kind, "")
    if retriever.preset is not None:
        if retriever.preset not in PRESETS:
            near = difflib.get_close_matches(retriever.preset, PRESETS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else f"; there are {', '.join(PRESETS)}"
            raise SettingsError(f"retriever {retriever.name}: unknown preset {retriever.preset}{hint}")
        base = PRESETS[retriever.preset]
        if base.kind != retriever.kind:
            raise SettingsError(
                f"retriever {retriever.name}: preset {retriever.preset} is of kind {base.kind}, not {retriever.kind}"
            )

    def first(name: str, *, option: bool = False) -> Any:
        own = retriever.options.get(name) if option else getattr(retriever, name)
        return getattr(base, name) if own is None else own

    settings = Preset(
        retriever.kind,
        model=first("model"),
        query_prompt=first("query_prompt"),
        passage_prompt=first("passage_prompt"),
        max_length=first("max_length"),
        dimensions=first("dimensions"),
        pooling=base.pooling,
        normalize=first("normalize", option=True),
        trust_remote_code=first("trust_remote_code", option=True),
        provider=first("provider", option=True),
        query_options=first("query_options", option=True),
        passage_options=first("passage_options", option=True),
        checked=base.checked,
    )
    if not settings.model and retriever.kind != "dense":
        raise SettingsError(f"retriever {retriever.name}: kind {retriever.kind} needs a model or a preset")
    return settings
