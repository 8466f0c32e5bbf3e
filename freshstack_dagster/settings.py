"""What a user sets: topics, repositories, retrievers, model roles and where things live.

One YAML file a topic in `data/topics/`, one file of months in `data/snapshots.yaml`, and environment variables for
places (`FRESHSTACK_ROOT`) and secrets. Every key is checked; an unknown one is refused with its nearest neighbour.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.strict_yaml import read_yaml

SNAPSHOT = re.compile(r"^(19|20|21)\d\d-(0[1-9]|1[0-2])$")
M = TypeVar("M", bound=BaseModel)
# What may go with a role's model in the environment, by the end of the variable's name.
_ROLE_VARIABLES = {"BASE_URL": "base_url", "API_KEY_ENV": "api_key_env"}
ALIAS = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
FULL_COMMIT = re.compile(r"^[0-9a-f]{40}$")

Variant = Literal["question", "sub_questions", "closed_book_answer", "answer", "nuggets"]
VARIANTS: tuple[Variant, ...] = ("question", "sub_questions", "closed_book_answer", "answer", "nuggets")
SETTING_OF_VARIANT: dict[str, str] = {
    "question": "inference",
    "sub_questions": "inference",
    "closed_book_answer": "inference",
    "answer": "oracle",
    "nuggets": "oracle",
}


class Model(BaseModel):
    """Base of every settings object: frozen, and an unknown key is an error. What stands below a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Repository(Model):
    """One repository of a topic's corpus; `owner/name` alone is enough for one on GitHub."""

    name: str
    """`owner/name`; cloned from GitHub unless `url`, `path` or `history` says otherwise. It heads the documents."""
    alias: str = ""
    """First part of every `doc_id`, unique in the topic; the repository's own name if not given."""
    url: str | None = None
    """Where it is cloned from, if not GitHub. Holds no token."""
    path: Path | None = None
    """A local repository, bare or not."""
    history: Path | None = None
    """A recipe of dated commits from which a repository is built on the spot, as the sample's are."""
    branch: str | None = None
    """Its default branch, if not the one that it names itself."""
    branches: dict[str, str] = Field(default_factory=dict)
    """The default branch by snapshot, for one that was renamed: `{2024-10: 11.x}`."""
    pins: dict[str, str] = Field(default_factory=dict)
    """A full commit id by snapshot, instead of the last commit before the month's end."""
    since: str | None = None
    """First snapshot of which it is a part, for one that is younger than others; the first of all if not given."""
    formerly: tuple[str, ...] = ()
    """Names it had before; old documents and mirrors are joined with it."""
    include: tuple[str, ...] = ()
    """Globs over paths; only files that match one are chunked."""
    exclude: tuple[str, ...] = ("published",)
    """Globs over paths that are left out; `published` stands for what the published corpora leave out."""
    token_env: str | None = None
    """Name of the environment variable that holds a token, for a private repository."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            value = {"alias": value["name"].rsplit("/", 1)[-1], **value}
        return value

    @model_validator(mode="after")
    def _check(self) -> Repository:
        if not ALIAS.match(self.alias):
            raise ValueError(f"alias {self.alias!r} may hold letters, digits, '.', '_' and '-' only")
        if sum(place is not None for place in (self.url, self.path, self.history)) > 1:
            raise ValueError("give one of url, path and history")
        for snapshot in [*self.branches, *self.pins, *([self.since] if self.since else [])]:
            _check_snapshot(snapshot)
        for commit in self.pins.values():
            if not FULL_COMMIT.match(commit):
                raise ValueError(f"pin {commit!r} is not a full commit id of 40 hex digits")
        return self

    def is_part_of(self, snapshot: str) -> bool:
        """Whether it belongs to the corpus of a snapshot."""
        return self.since is None or self.since <= snapshot

    @property
    def clone_url(self) -> str:
        """Where it is cloned from; never holds a token."""
        return self.url or f"https://github.com/{self.name}.git"


class QuestionSource(Model):
    """Where a topic's questions come from, and which of them are taken."""

    kind: Literal["dump", "jsonl", "api", "collection"]
    """`dump` (a Stack Exchange `Posts.xml` or `.7z`), `jsonl`, `api` (Stack Exchange API) or `collection` (rows of a
    published collection)."""
    path: Path | None = None
    """The file; for a `collection` also a folder, a pattern or an `hf://` address. Not for `api`."""
    site: str = "stackoverflow.com"
    """Site of the posts, for their URLs and for the API."""
    min_score: int | None = None
    """Least votes of a question."""
    exclude_closed: bool = False
    """Leave out what the community closed."""
    exclude_duplicates: bool = False
    """Leave out what is marked as a duplicate."""
    max_characters: int | None = Field(default=None, ge=1)
    """Most characters of title and body."""
    nuggets: Literal["written", "published"] = "written"
    """`written` by the topic's model, or the `published` ones of a `collection`: so a published benchmark is judged
    again on another month."""

    @model_validator(mode="after")
    def _check(self) -> QuestionSource:
        if self.nuggets == "published" and self.kind != "collection":
            raise ValueError(f"nuggets: published needs a source of kind collection, not {self.kind}")
        if self.kind != "api" and self.path is None:
            raise ValueError(f"a source of kind {self.kind} needs a path")
        return self


class Retriever(Model):
    """A named retriever; its kind alone is enough for one without settings."""

    name: str
    """Stands in `runs.retriever`; the kind if not given."""
    kind: Literal["bm25", "bm25_code", "lsa", "dense", "api", "multi_vector", "plugin"]
    """`bm25` (Lucene's analysis), `bm25_code` (splits identifiers), `lsa` (fitted to the corpus), `dense`
    (sentence-transformers), `api` (an embeddings endpoint), `multi_vector` (PyLate) or `plugin` (an entry point)."""
    preset: str | None = None
    """Settings of a known model by its name; see retrieval.md."""
    model: str | None = None
    """The model, or the entry point's name."""
    base_url: str | None = None
    """Address of the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable with the key."""
    query_prompt: str | None = None
    """Text before each query, as the model asks for."""
    passage_prompt: str | None = None
    """Text before each document."""
    max_length: int | None = Field(default=None, ge=1)
    """Tokens of an input; longer ones are cut and counted."""
    dimensions: int | None = Field(default=None, ge=1)
    """Leading dimensions of each vector that are kept."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the kind; see retrieval.md."""

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: Any) -> Any:
        value = {"kind": value} if isinstance(value, str) else value
        if isinstance(value, dict) and "kind" in value:
            value = {"name": value["kind"], **value}
        return value


class Reranker(Model):
    """A named reranker over the top of a run."""

    name: str
    """Stands after the base run: `{base}+{name}`."""
    kind: Literal["cross_encoder", "api", "llm"]
    """`cross_encoder`, `api` (Voyage, Cohere) or `llm` (listwise)."""
    model: str
    """The model."""
    base_url: str | None = None
    """Address of the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable with the key."""
    depth: int = Field(default=50, ge=1)
    """How many of a run's first documents are ordered again."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the kind; see retrieval.md."""


class Pooling(Model):
    """How candidates are found."""

    depth: int = Field(default=20, ge=1)
    """Candidates of each query variant, from its fused ranking."""
    run_depth: int = Field(default=100, ge=1)
    """Documents of each ranking in `runs`."""
    variants: tuple[Variant, ...] = Field(default=VARIANTS, min_length=1)
    """Forms of the question that are retrieved for."""
    fusion: Literal["min_max", "rrf"] = "min_max"
    """`min_max` (scores of each list scaled to 0 to 1 and summed) or `rrf` (reciprocal ranks)."""
    top_up: bool = False
    """Whether submitted runs enter their snapshot's pool too, which costs judging."""


class ModelRole(Model):
    """Who plays a language-model role."""

    provider: Literal["heuristic", "openai", "anthropic", "compatible", "replay"] = "heuristic"
    """`heuristic` (no key, no network), `openai`, `anthropic`, `compatible` (any OpenAI-compatible endpoint at
    `base_url`) or `replay` (reads the cache only)."""
    model: str = "heuristic"
    """The provider's name of the model."""
    base_url: str | None = None
    """Address of the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, if not the provider's usual one."""
    json_schema: bool = True
    """Whether the endpoint enforces a JSON schema; without it the schema stands in the prompt."""
    temperature: float | None = None
    """Passed on if given; the provider's default else."""
    max_output_tokens: int = Field(default=8192, ge=1)
    """Most tokens of a reply. A longer one is an error, or a smaller batch of documents."""
    concurrency: int = Field(default=8, ge=1)
    """Calls at once."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Most requests a minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most tokens a minute, in and out."""
    timeout_seconds: float = Field(default=120, gt=0)
    """Seconds to wait for a reply."""
    attempts: int = Field(default=3, ge=1)
    """How often a reply that cannot be read is asked for, in all."""
    batch: bool = False
    """Use the provider's batch API: half the price, within a day."""
    cache: Literal["use", "refresh", "only"] = "use"
    """`use` replies that are there; `refresh` asks again; `only` refuses to call."""
    prompt: Path | None = None
    """A file that replaces the bundled prompt."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed on to the provider, such as `{reasoning_effort: low}`."""

    @model_validator(mode="after")
    def _check(self) -> ModelRole:
        if self.provider not in ("heuristic", "replay") and self.model == "heuristic":
            raise ValueError(f"provider {self.provider} needs a model")
        if self.provider == "heuristic" and self.model != "heuristic":
            raise ValueError(
                f"model {self.model} needs a provider, such as openai; without one the heuristic would play"
            )
        if self.provider == "compatible" and not self.base_url:
            raise ValueError("provider compatible needs a base_url")
        return self


class Judging(Model):
    """How the pool is judged."""

    chunks_per_call: int = Field(default=20, ge=1, le=20)
    """Documents that the judge reads in one call."""
    carry_over: bool = True
    """Whether a verdict on the same nugget and text is taken over from another snapshot."""
    max_error_share: float = Field(default=0.05, ge=0, le=1)
    """Share of errors above which the asset fails."""
    seed: int = 13
    """Of the order of documents and the draw of pairs for annotators."""
    max_chunk_tokens: int = Field(default=2048, ge=64)
    """Longer chunks are shortened for the judge, visibly, and counted."""
    annotated_share: float = Field(default=1.0, gt=0, le=1)
    """Part of each question's pool that the annotators judge as well."""
    verdict: Literal["judge", "majority"] = "judge"
    """Who makes the qrels: the `judge`, or the `majority` of judge and annotators. What people settled counts first."""


class Roles(Model):
    """The language-model roles of a topic."""

    nuggets: ModelRole = ModelRole()
    """Writes the facts of each answer."""
    sub_questions: ModelRole = ModelRole()
    """Takes the question apart, without the answer."""
    closed_book_answer: ModelRole = ModelRole()
    """Answers by heart, without the answer or the corpus."""
    judge: ModelRole = ModelRole()
    """Says which chunks support which nugget."""
    annotators: dict[str, ModelRole] = Field(default_factory=dict)
    """Further judges by name, for agreement or the majority."""

    @model_validator(mode="after")
    def _check(self) -> Roles:
        judges = {"judge": self.judge, **self.annotators}
        named: dict[tuple[str, str], str] = {}
        for name, role in judges.items():
            other = named.setdefault((role.provider, role.model), name)
            if other != name:
                raise ValueError(f"{name} and {other} are the same model; agreement with oneself says nothing")
        return self


class Budget(Model):
    """Spending caps in dollars; none means that no paid call is refused."""

    per_run: float | None = Field(default=None, ge=0)
    """Dollars that one run may spend."""
    per_month: float | None = Field(default=None, ge=0)
    """Dollars that a calendar month may cost, over all topics."""
    prices: Path | None = None
    """A file of dollars per million tokens that goes before the bundled one."""


class Topic(Model):
    """A subject with its question tags and its repositories."""

    name: str
    """The file's name without `.yaml`."""
    title: str
    """Stands over report and export."""
    domain: str = ""
    """The subject's field, for report and export."""
    tags: frozenset[str] = frozenset()
    """A question needs one of them, exactly; without any, every question is taken."""
    asked_from: datetime | None = None
    """Earliest date of a question."""
    asked_before: datetime | None = None
    """A fixed cut-off; without it a snapshot takes the questions asked before its own end."""
    questions: QuestionSource | None = None
    """Where the questions come from."""
    repositories: tuple[Repository, ...]
    """The corpus: `owner/name`, or a mapping of the keys below."""
    baseline: str | None = None
    """The snapshot that others are compared with; the first if not given."""
    keep_partial: bool = False
    """Keep questions of which only some nuggets are supported."""
    max_tokens: int = Field(default=2048, ge=64)
    """Most tokens of a chunk (cl100k_base), with its path line."""
    seconds_per_file: float = Field(default=20, gt=0)
    """After so long a file falls back to being cut as text."""
    max_file_bytes: int = Field(default=5_000_000, ge=1)
    """Larger files have a row in `files` and no chunk."""
    retrievers: tuple[Retriever, ...] = (
        Retriever(name="bm25", kind="bm25"),
        Retriever(name="bm25_code", kind="bm25_code"),
        Retriever(name="lsa", kind="lsa"),
    )
    """What is retrieved with: a kind, or a mapping of the keys below."""
    rerankers: tuple[Reranker, ...] = ()
    """What orders the top of the question's runs again."""
    pooling: Pooling = Pooling()
    """How candidates are found."""
    judging: Judging = Judging()
    """How the pool is judged."""
    roles: Roles = Roles()
    """Who plays the language-model roles."""
    budget: Budget = Budget()
    """What may be spent."""
    layouts: tuple[Literal["freshstack", "beir", "trec"], ...] = ("freshstack",)
    """Layouts in which the job `publish` writes the collection."""

    @field_serializer("tags")
    def _in_order(self, tags: frozenset[str]) -> list[str]:
        """A set has another order in every process; what is made of it, such as a fingerprint, must not."""
        return sorted(tags)

    @field_validator("asked_from", "asked_before")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    @field_validator("asked_from", "asked_before", mode="before")
    @classmethod
    def _midnight(cls, value: Any) -> Any:
        return (
            f"{value}T00:00:00+00:00" if value is not None and re.match(r"^\d{4}-\d{2}-\d{2}$", str(value)) else value
        )

    @model_validator(mode="after")
    def _check(self) -> Topic:
        if self.baseline is not None:
            _check_snapshot(self.baseline)
        for what, names in (
            ("repository alias", [repository.alias for repository in self.repositories]),
            ("retriever", [retriever.name for retriever in self.retrievers]),
            ("reranker", [reranker.name for reranker in self.rerankers]),
        ):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"{what} {', '.join(repeated)} stands twice; give each a name of its own")
        for name in [
            *(retriever.name for retriever in self.retrievers),
            *(reranker.name for reranker in self.rerankers),
        ]:
            # `{base}+{reranker}` names a reranked run, and `fusion` the fused one.
            if "+" in name or name == "fusion":
                raise ValueError(f"{name!r} cannot name a retriever or reranker; choose one without '+', not `fusion`")
        if not self.repositories:
            raise ValueError("a topic needs at least one repository")
        if not self.layouts:
            raise ValueError("layouts is empty; name at least one")
        if not self.retrievers:
            raise ValueError("a topic needs at least one retriever")
        if self.judging.verdict == "majority" and not self.roles.annotators:
            raise ValueError("judging.verdict is majority, but there are no annotators; name some in roles.annotators")
        return self

    def asked_before_for(self, snapshot: str) -> datetime:
        """The moment before which a question must be asked to belong to the snapshot: its end, or the fixed cut-off."""
        end = snapshot_end(snapshot)
        return end if self.asked_before is None else self.asked_before


class Snapshots(Model):
    """The months that exist as partitions: those named, and every month from `live_from` on."""

    months: tuple[str, ...]
    """Past months that can be built."""
    live_from: str
    """Every month from this one on can be built, once it has ended."""

    @model_validator(mode="after")
    def _check(self) -> Snapshots:
        for snapshot in [*self.months, self.live_from]:
            _check_snapshot(snapshot)
        return self


class Places(Model):
    """Where a project keeps its things, all below one root by default."""

    root: Path

    @property
    def data(self) -> Path:
        """Topics, sample, reference and everything that is built."""
        return self.root / "data"

    @property
    def topics(self) -> Path:
        """One YAML file a topic."""
        return self.data / "topics"

    @property
    def lake(self) -> str:
        """The lake's location, a directory or a URL: `FRESHSTACK_LAKE`, else `data/lake`."""
        return os.environ.get("FRESHSTACK_LAKE") or str(self.data / "lake")

    @property
    def catalogue(self) -> Path:
        """The DuckDB file with a view a table."""
        return self.data / "freshstack.duckdb"

    @property
    def mirrors(self) -> Path:
        """Bare git mirrors, shared by topics and snapshots."""
        return Path(os.environ.get("FRESHSTACK_MIRRORS") or self.data / "mirrors")

    @property
    def cache(self) -> Path:
        """Content-addressed caches: chunks by blob, embeddings, indexes, model replies."""
        return Path(os.environ.get("FRESHSTACK_CACHE") or self.data / "cache")

    @property
    def reports(self) -> Path:
        """HTML reports."""
        return self.data / "reports"

    @property
    def exports(self) -> Path:
        """Collections as other tools read them: `exports/<topic>/<snapshot>/<layout>/`."""
        return self.data / "exports"

    @property
    def submitted_runs(self) -> Path:
        """Runs to score: `runs/<topic>/<snapshot>/`."""
        return self.data / "runs"

    @property
    def submitted_answers(self) -> Path:
        """Generated answers to score: `answers/<topic>/<system>.jsonl`."""
        return self.data / "answers"

    @property
    def human_verdicts(self) -> Path:
        """Verdicts of people: `verdicts/<topic>/<snapshot>/<person>.csv` or `.jsonl`."""
        return self.data / "verdicts"


def find_root(start: Path | None = None) -> Path:
    """The project's root: `FRESHSTACK_ROOT`, else the nearest folder upwards that holds `data/topics`.

    Raises SettingsError if there is none.
    """
    if named := os.environ.get("FRESHSTACK_ROOT"):
        return Path(named).resolve()
    here = (start or Path.cwd()).resolve()
    for folder in [here, *here.parents, Path(__file__).resolve().parents[1]]:
        if (folder / "data" / "topics").is_dir():
            return folder
    raise SettingsError(f"no folder data/topics at or above {here}; change into the project or set FRESHSTACK_ROOT")


def places(root: Path | None = None) -> Places:
    """The project's places below `root` (found from the working directory if not given)."""
    return Places(root=root or find_root())


def snapshot_end(snapshot: str) -> datetime:
    """First moment after the month `YYYY-MM`, in UTC."""
    _check_snapshot(snapshot, SettingsError)
    year, month = map(int, snapshot.split("-"))
    return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def load_topic(path: Path) -> Topic:
    """Read one topic file; relative paths in it are taken from the project's root.

    A role's provider and model may come from the environment instead (`FRESHSTACK_JUDGE_MODEL=openai:gpt-4o`). Raises
    SettingsError in one line that names the file, the key, and what was expected.
    """
    document = _read_settings(path)
    if document.setdefault("name", path.stem) != path.stem:
        raise SettingsError(f"{path}: name is {document['name']!r} but the file is called {path.name}")
    topic = _validate(Topic, document, path)
    topic = topic.model_copy(update=_absolute_paths(topic, path.resolve().parents[2]))
    return topic.model_copy(update={"roles": _roles_from_environment(topic.roles)})


def role_from_environment(name: str, role: ModelRole, environ: Mapping[str, str]) -> ModelRole:
    """`role` with what the environment says about it.

    `FRESHSTACK_<ROLE>_MODEL` is `provider:model` (or `heuristic`), `FRESHSTACK_<ROLE>_BASE_URL` and
    `FRESHSTACK_<ROLE>_API_KEY_ENV` go with it; `<ROLE>` is the role's name in capitals. A provider that changes leaves
    the address and the key's name of the topic behind, which belong to another one. Raises SettingsError that names the
    variable.
    """
    prefix = f"FRESHSTACK_{name.upper()}_"
    changes: dict[str, Any] = {}
    if model := environ.get(f"{prefix}MODEL", "").strip():
        provider, _, rest = model.partition(":")
        if provider not in get_args(ModelRole.model_fields["provider"].annotation):
            raise SettingsError(f"{prefix}MODEL: expected provider:model such as openai:gpt-5-mini, got {model!r}")
        changes = {"provider": provider, "model": rest or "heuristic"}
        if provider != role.provider:
            changes |= {"base_url": None, "api_key_env": None}
    for suffix, key in _ROLE_VARIABLES.items():
        if value := environ.get(f"{prefix}{suffix}", "").strip():
            changes[key] = value
    if not changes:
        return role
    try:
        return ModelRole.model_validate({**role.model_dump(), **changes})
    except ValidationError as error:
        why = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise SettingsError(f"{prefix}MODEL, {prefix}BASE_URL: {why}") from None


def _roles_from_environment(roles: Roles) -> Roles:
    names = ("nuggets", "sub_questions", "closed_book_answer", "judge")
    played = {name: role_from_environment(name, getattr(roles, name), os.environ) for name in names}
    try:
        return Roles(**{**{name: getattr(roles, name) for name in Roles.model_fields}, **played})
    except ValidationError as error:
        why = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise SettingsError(f"FRESHSTACK_<ROLE>_MODEL: {why}") from None


def topic_files(folder: Path) -> list[Path]:
    """The topic files of a folder, sorted.

    Raises SettingsError if there is none, or for one whose name would be overlooked or does not fit.
    """
    for path in folder.glob("*.yml"):
        raise SettingsError(f"{path}: topic files end in .yaml; rename it")
    files = sorted(folder.glob("*.yaml"))
    for path in files:
        if not ALIAS.match(path.stem):
            raise SettingsError(f"{path}: a topic's name may hold letters, digits, '.', '_' and '-' only; rename it")
    if not files:
        raise SettingsError(f"{folder}: no topic file; add one such as {folder / 'sample.yaml'}")
    return files


def find_topic(where: Places, name: str) -> Topic:
    """The topic of a name. Raises SettingsError that names those there are, or what is wrong with its file."""
    path = where.topics / f"{name}.yaml"
    if not path.exists():
        known = [file.stem for file in topic_files(where.topics)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(f"no topic {name}; {hint}there are {', '.join(known)}")
    return load_topic(path)


def load_topics(folder: Path) -> dict[str, Topic]:
    """Read every topic file of a folder, by name, sorted."""
    return {path.stem: load_topic(path) for path in topic_files(folder)}


def load_snapshots(path: Path) -> Snapshots:
    """Read the file of months."""
    return _validate(Snapshots, _read_settings(path), path)


def _check_snapshot(snapshot: str, error: type[Exception] = ValueError) -> None:
    if not SNAPSHOT.match(snapshot):
        raise error(f"snapshot {snapshot!r} is not a month such as 2024-10")


def _read_settings(path: Path) -> dict[str, Any]:
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: expected keys and values, found {type(document).__name__}")
    return document


def _validate(model: type[M], document: dict[str, Any], path: Path) -> M:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = [_fault(model, fault) for fault in error.errors()]
        raise SettingsError(f"{path}: " + "; ".join(dict.fromkeys(faults))) from None


def _fault(model: type[BaseModel], fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = sorted(set(_keys(model)))
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        return f"unknown key {where}" + (f" (did you mean {near[0]}?)" if near else "")
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a settings model and of the models inside it."""
    for name, field in model.model_fields.items():
        yield name
        for part in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys(part)


def _absolute_paths(topic: Topic, root: Path) -> dict[str, Any]:
    def absolute(model: Any, *names: str) -> Any:
        changed = {
            name: (root / os.path.expandvars(str(value))).resolve()
            for name in names
            # An address on a hub is no place below the root (a Path has taken one of its slashes).
            if (value := getattr(model, name)) is not None and not str(value).startswith("hf:/")
        }
        return model.model_copy(update=changed)

    roles = topic.roles.model_copy(
        update={
            **{
                name: absolute(getattr(topic.roles, name), "prompt")
                for name in ("nuggets", "sub_questions", "closed_book_answer", "judge")
            },
            "annotators": {name: absolute(role, "prompt") for name, role in topic.roles.annotators.items()},
        }
    )
    return {
        "repositories": tuple(absolute(repository, "path", "history") for repository in topic.repositories),
        "questions": None if topic.questions is None else absolute(topic.questions, "path"),
        "roles": roles,
        "budget": absolute(topic.budget, "prices"),
    }
