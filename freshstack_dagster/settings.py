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

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.strict_yaml import read_yaml

SNAPSHOT = re.compile(r"^\d{4}-(0[1-9]|1[0-2])$")
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
    """Base of every settings object: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Repository(Model):
    """One repository of a topic's corpus.

    `name` is `owner/name`. Without more it is cloned from GitHub; `url` names another host, `path` a local repository
    (bare or not), `history` a recipe of dated commits from which a repository is built on the spot. `branch` is the
    default branch, `branches` overrides it by snapshot, `pins` fixes a commit by snapshot. `include` and `exclude` are
    globs over paths; `published` in `exclude` stands for what the published corpora leave out.
    """

    name: str
    alias: str = ""
    url: str | None = None
    path: Path | None = None
    history: Path | None = None
    branch: str | None = None
    branches: dict[str, str] = Field(default_factory=dict)
    pins: dict[str, str] = Field(default_factory=dict)
    formerly: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ("published",)
    token_env: str | None = None

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
        for snapshot in [*self.branches, *self.pins]:
            _check_snapshot(snapshot)
        for commit in self.pins.values():
            if not FULL_COMMIT.match(commit):
                raise ValueError(f"pin {commit!r} is not a full commit id of 40 hex digits")
        return self

    @property
    def clone_url(self) -> str:
        """Where it is cloned from; never holds a token."""
        return self.url or f"https://github.com/{self.name}.git"


class QuestionSource(Model):
    """Where a topic's questions come from.

    `kind`: `dump` (Stack Exchange `Posts.xml` or `.7z`), `jsonl`, `api` (Stack Exchange API) or `collection` (rows of
    a published FreshStack collection, from a local Parquet or JSONL file or an `hf://` address).
    `nuggets`: `written` by the topic's model, or the `published` ones of a collection: so a published benchmark is
    judged again on another month with its own nuggets.
    """

    kind: Literal["dump", "jsonl", "api", "collection"]
    path: Path | None = None
    site: str = "stackoverflow.com"
    min_score: int | None = None
    exclude_closed: bool = False
    exclude_duplicates: bool = False
    max_characters: int | None = None
    nuggets: Literal["written", "published"] = "written"

    @model_validator(mode="after")
    def _check(self) -> QuestionSource:
        if self.nuggets == "published" and self.kind != "collection":
            raise ValueError(f"nuggets: published needs a source of kind collection, not {self.kind}")
        if self.kind != "api" and self.path is None:
            raise ValueError(f"a source of kind {self.kind} needs a path")
        return self


class Retriever(Model):
    """A named retriever.

    `kind`: `bm25` (Lucene's analysis), `bm25_code` (splits identifiers), `lsa` (latent semantic analysis fitted to the
    corpus), `dense` (a sentence-transformers model), `api` (an embeddings endpoint) or `plugin` (an entry point).
    `preset` takes the settings of a known model by name.
    """

    name: str
    kind: Literal["bm25", "bm25_code", "lsa", "dense", "api", "multi_vector", "plugin"]
    preset: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    max_length: int | None = None
    dimensions: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: Any) -> Any:
        value = {"kind": value} if isinstance(value, str) else value
        if isinstance(value, dict) and "kind" in value:
            value = {"name": value["kind"], **value}
        return value


class Reranker(Model):
    """A named reranker over the top of a run: `cross_encoder`, `api` (Voyage, Cohere) or `llm` (listwise)."""

    name: str
    kind: Literal["cross_encoder", "api", "llm"]
    model: str
    base_url: str | None = None
    api_key_env: str | None = None
    depth: int = 50
    options: dict[str, Any] = Field(default_factory=dict)


class Pooling(Model):
    """How candidates are found: depth of the pool and of runs, query variants, fusion.

    With `top_up` the runs that were submitted for a snapshot enter its pool too, which costs judging.
    """

    depth: int = Field(default=20, ge=1)
    run_depth: int = Field(default=100, ge=1)
    variants: tuple[Variant, ...] = VARIANTS
    fusion: Literal["min_max", "rrf"] = "min_max"
    top_up: bool = False


class ModelRole(Model):
    """Who plays a language-model role.

    `provider`: `heuristic` (the embedded default, no key, no network), `openai`, `anthropic`, `compatible` (any
    OpenAI-compatible endpoint at `base_url`) or `replay` (only reads the cache). `prompt` replaces the bundled prompt
    by a file.
    """

    provider: Literal["heuristic", "openai", "anthropic", "compatible", "replay"] = "heuristic"
    model: str = "heuristic"
    base_url: str | None = None
    api_key_env: str | None = None
    json_schema: bool = True
    temperature: float | None = None
    max_output_tokens: int = Field(default=8192, ge=1)
    concurrency: int = Field(default=8, ge=1)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout_seconds: float = Field(default=120, gt=0)
    attempts: int = Field(default=3, ge=1)
    batch: bool = False
    cache: Literal["use", "refresh", "only"] = "use"
    prompt: Path | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> ModelRole:
        if self.provider not in ("heuristic", "replay") and self.model == "heuristic":
            raise ValueError(f"provider {self.provider} needs a model")
        if self.provider == "compatible" and not self.base_url:
            raise ValueError("provider compatible needs a base_url")
        return self


class Judging(Model):
    """How the pool is judged: chunks a call, carry-over between snapshots, the share of errors that fails the asset.

    `annotated_share` of each question's pool, drawn by `seed`, is judged by the annotators as well. `verdict` says who
    makes the qrels: the judge, or the majority of judge and annotators.
    """

    chunks_per_call: int = Field(default=20, ge=1, le=20)
    carry_over: bool = True
    max_error_share: float = Field(default=0.05, ge=0, le=1)
    seed: int = 13
    max_chunk_tokens: int = Field(default=2048, ge=64)
    annotated_share: float = Field(default=1.0, gt=0, le=1)
    verdict: Literal["judge", "majority"] = "judge"


class Roles(Model):
    """The language-model roles of a topic."""

    nuggets: ModelRole = ModelRole()
    sub_questions: ModelRole = ModelRole()
    closed_book_answer: ModelRole = ModelRole()
    judge: ModelRole = ModelRole()
    annotators: dict[str, ModelRole] = Field(default_factory=dict)

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
    """Spending caps in dollars; none means no paid call is refused. `prices` overrides dollars per million tokens."""

    per_run: float | None = Field(default=None, ge=0)
    per_month: float | None = Field(default=None, ge=0)
    prices: Path | None = None


class Topic(Model):
    """A subject with its question tags and its repositories.

    A question belongs to a snapshot if it was asked before the snapshot's end, or before `asked_before` if that is set.
    `keep_partial` keeps questions of which only some nuggets are supported.
    """

    name: str
    title: str
    domain: str = ""
    tags: frozenset[str] = frozenset()
    asked_from: datetime | None = None
    asked_before: datetime | None = None
    questions: QuestionSource | None = None
    repositories: tuple[Repository, ...]
    baseline: str | None = None
    keep_partial: bool = False
    max_tokens: int = Field(default=2048, ge=64)
    seconds_per_file: float = Field(default=20, gt=0)
    max_file_bytes: int = Field(default=5_000_000, ge=1)
    retrievers: tuple[Retriever, ...] = (
        Retriever(name="bm25", kind="bm25"),
        Retriever(name="bm25_code", kind="bm25_code"),
        Retriever(name="lsa", kind="lsa"),
    )
    rerankers: tuple[Reranker, ...] = ()
    pooling: Pooling = Pooling()
    judging: Judging = Judging()
    roles: Roles = Roles()
    budget: Budget = Budget()

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
        if not self.repositories:
            raise ValueError("a topic needs at least one repository")
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
    live_from: str

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
    def submitted_runs(self) -> Path:
        """Runs to score: `runs/<topic>/<snapshot>/`."""
        return self.data / "runs"

    @property
    def submitted_answers(self) -> Path:
        """Generated answers to score: `answers/<topic>/<system>.jsonl`."""
        return self.data / "answers"


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
    return roles.model_copy(
        update={name: role_from_environment(name, getattr(roles, name), os.environ) for name in names}
    )


def load_topics(folder: Path) -> dict[str, Topic]:
    """Read every topic file of a folder, by name, sorted."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise SettingsError(f"{folder}: no topic file; add one such as {folder / 'sample.yaml'}")
    return {path.stem: load_topic(path) for path in files}


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
