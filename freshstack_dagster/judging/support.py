"""Judgments: for each nugget and each pooled chunk, does the chunk support the nugget? (FreshStack, section 3.5)

A judge sees the question, its answer, all its nuggets and up to 20 chunks a call. What it cannot answer is an `error`,
never `unsupported`. A text is judged once for a nugget, however many chunks hold it, and a verdict that stands in
another snapshot is carried over instead of being paid for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from freshstack_dagster.corpus.tokens import token_ends
from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging import heuristic
from freshstack_dagster.judging.nuggets import explain, question_text, version_of
from freshstack_dagster.judging.prompts import Prompt, load_prompt
from freshstack_dagster.judging.replies import DocumentVerdict, read_support, support_schema
from freshstack_dagster.language_models import Caller, Models, Request, run
from freshstack_dagster.settings import Judging, ModelRole
from freshstack_dagster.tables import TABLES

SUPPORTED, UNSUPPORTED, ERROR = "supported", "unsupported", "error"
SHORTENED = "[chunk shortened for the judge:"
"""Opens the note that is added to the reason where the judge saw only the head of a chunk."""

_PAIR = ("question_id", "nugget_hash", "content_hash")
_VERDICT = ("verdict", "reason", "quote", "quote_found", "reply", "carried_from")


@dataclass(frozen=True)
class _Nugget:
    nugget_id: str
    nugget_hash: str
    text: str


@dataclass(frozen=True)
class _Text:
    """The text of one or more chunks."""

    content_hash: str
    text: str

    def shown(self, limit: int) -> tuple[str, str | None]:
        """The text within `limit` cl100k_base tokens, cut at a line if one is near, and a note if that is not all."""
        data = self.text.encode()
        if len(data) <= limit or len(ends := token_ends(self.text)) <= limit:
            return self.text, None
        head = data[: int(ends[limit - 1])].decode("utf-8", "ignore")
        at_line = head.rfind("\n", len(head) // 2)
        head = head[: at_line + 1] if at_line >= 0 else head
        left_out = len(self.text) - len(head)
        note = f"{SHORTENED} {len(head):,} of {len(self.text):,} characters shown]"
        return f"{head}\n[... {left_out:,} characters of this document are left out here ...]", note


@dataclass(frozen=True)
class _Question:
    """A question with its nuggets and the texts of its pool that are to be judged, and for which nuggets each."""

    question_id: str
    row: Mapping[str, Any]
    nuggets: tuple[_Nugget, ...]
    texts: tuple[_Text, ...]
    wanted: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """Who judges what: all pairs, those whose verdicts are known, and the rest as work by question."""

    caller: Caller
    prompt: Prompt
    version: str
    role: ModelRole
    judging: Judging
    pairs: pl.DataFrame
    known: pl.DataFrame
    asked: pl.DataFrame
    work: Sequence[_Question]
    statistics: heuristic.PooledTexts | None

    def batches(self) -> list[tuple[_Question, tuple[_Text, ...]]]:
        """The calls: a question with up to `chunks_per_call` of its texts, in calls of about equal size.

        The order of texts must not tell the judge how well a chunk was retrieved, and must be the same when a run is
        repeated. It is by hash with the seed rather than by a generator, so that a new chunk in the pool does not
        reshuffle the others.
        """
        found = []
        for question in self.work:

            def place(text: _Text, question_id: str = question.question_id) -> str:
                return hashlib.sha256(f"{self.judging.seed}\n{question_id}\n{text.content_hash}".encode()).hexdigest()

            ordered = sorted(question.texts, key=place)
            calls = math.ceil(len(ordered) / self.judging.chunks_per_call)
            bounds = [round(call * len(ordered) / calls) for call in range(calls + 1)]
            found += [(question, tuple(ordered[start:end])) for start, end in itertools.pairwise(bounds)]
        return found

    def request(self, question: _Question, batch: Sequence[_Text]) -> tuple[Request, list[str | None]]:
        """The request for a batch, and for each of its texts a note if the judge sees only part of it."""
        # The heuristic works on the whole texts: its window is small wherever it stands.
        whole = self.caller.judge_kind == "heuristic"
        shown = [(text.text, None) if whole else text.shown(self.judging.max_chunk_tokens) for text in batch]
        # The path of a chunk is not shown: a verdict belongs to the text alone, or it could not be carried over.
        nuggets = [nugget.text for nugget in question.nuggets]
        texts = {
            "question": question_text(question.row),
            "answer": question.row["answer_text"],
            "nuggets": "\n".join(f"{number}. {text}" for number, text in enumerate(nuggets, 1)),
            "documents": "\n\n".join(
                f'<document number="{number}">\n{text}\n</document>' for number, (text, _) in enumerate(shown, 1)
            ),
            "nugget_count": str(len(nuggets)),
            "document_count": str(len(shown)),
        }
        digest = hashlib.sha256("\n".join(text.content_hash for text in batch).encode()).hexdigest()[:16]
        inputs: dict[str, Any] = {"nuggets": nuggets, "documents": [text.text for text in batch]}
        if self.statistics is not None:
            inputs |= {"content_hashes": [text.content_hash for text in batch], "statistics": self.statistics}
        request = Request(
            id=f"support:{question.question_id}:{digest}",
            task="support",
            system=self.prompt.system,
            user=self.prompt.fill(texts),
            schema=support_schema(len(shown), len(nuggets)),
            prompt=self.version,
            inputs=inputs,
            question_id=question.question_id,
        )
        return request, [note for _, note in shown]


def judge_support(
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    pools: pl.DataFrame,
    chunks: pl.LazyFrame | pl.DataFrame,
    models: Models,
    role: ModelRole,
    judging: Judging,
    *,
    judge_name: str = "judge",
    earlier: Sequence[tuple[str | None, pl.DataFrame]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Judge every nugget of each pooled question against every chunk of its pool, for the snapshot of `models`.

    `questions`, `nuggets`, `pools` are the tables of those names; `chunks` needs doc_id, content_hash and text.
    `judge_name` is the role's name for the record of calls. `earlier` holds (snapshot, judgments) of
    other snapshots, the first that knows a pair wins; the snapshot None stands for this same one, whose verdicts are
    kept as they are. A verdict is carried over if question, text of the nugget, text of the chunk, judge and prompt are
    the same and it is no error; `carried_from` names the snapshot in which it was given. Nothing is carried over if
    `judging.carry_over` is off or the role's cache is set to `refresh`. `progress` is called with (calls done, calls).

    Returns the table `judgments`: one row for each nugget and pooled chunk. Questions without nuggets have none.
    Raises EvaluationError if the pools name a question or a chunk that does not exist, BudgetError or ModelError where
    the client stops the run.
    """
    plan = _plan(questions, nuggets, pools, chunks, models, role, judging, judge_name, earlier)
    fresh = _ask(plan, progress)
    judged = pl.concat(
        [
            plan.asked.join(fresh, on=["nugget_id", "content_hash"], how="left", validate="m:1"),
            plan.pairs.join(plan.known, on=_PAIR, how="inner", validate="m:1"),
        ],
        how="diagonal",
    )
    if judged.height != plan.pairs.height or judged["verdict"].null_count():
        # Holds by construction; if it ever does not, a lost verdict must not pass for an unsupported one.
        raise EvaluationError(f"{plan.pairs.height - judged['verdict'].count()} pairs came back without a verdict")
    return judged.with_columns(
        judge=pl.lit(plan.caller.model), judge_kind=pl.lit(plan.caller.judge_kind), prompt=pl.lit(plan.version)
    ).pipe(TABLES["judgments"].conform)


def support_requests(
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    pools: pl.DataFrame,
    chunks: pl.LazyFrame | pl.DataFrame,
    models: Models,
    role: ModelRole,
    judging: Judging,
    *,
    judge_name: str = "judge",
    earlier: Sequence[tuple[str | None, pl.DataFrame]] = (),
) -> list[Request]:
    """What `judge_support` would ask, without asking: for an estimate of its price, with or without carry-over.

    Further calls come only from replies that fail: those asked again, and batches that are halved.
    """
    plan = _plan(questions, nuggets, pools, chunks, models, role, judging, judge_name, earlier)
    return [plan.request(question, batch)[0] for question, batch in plan.batches()]


def error_share(judgments: pl.DataFrame) -> float:
    """Share of the judgments that are errors, from 0 to 1; 0 if there are none."""
    return float((judgments["verdict"] == ERROR).mean() or 0.0) if judgments.height else 0.0  # type: ignore[arg-type]


def judging_counts(judgments: pl.DataFrame) -> dict[str, int]:
    """Counts worth looking at: pairs by verdict, carried over, shortened, and supports whose quote is not found."""
    verdict, supported = judgments["verdict"], judgments.filter(pl.col("verdict") == SUPPORTED)
    return {
        "judgments": judgments.height,
        **{name: int((verdict == name).sum()) for name in (SUPPORTED, UNSUPPORTED, ERROR)},
        "carried_over": judgments.height - judgments["carried_from"].null_count(),
        "shortened": int(judgments["reason"].str.contains(SHORTENED, literal=True).sum()),
        "quotes_not_found": int((~supported["quote_found"].fill_null(False)).sum()),
        "texts_judged": judgments.filter(pl.col("carried_from").is_null())
        .select("question_id", "content_hash")
        .n_unique(),
    }


def nugget_hash(text: str) -> str:
    """sha256 of a nugget's text, in hex: a reworded nugget under the same id is another nugget."""
    return hashlib.sha256(text.encode()).hexdigest()


def quote_stands_in(quote: str, text: str) -> bool:
    """Whether a quote stands in a text, exactly or but for white space (models wrap and indent lines anew)."""
    if quote in text:
        return True
    words = " ".join(quote.split())
    return bool(words) and words in " ".join(text.split())


def _plan(
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    pools: pl.DataFrame,
    chunks: pl.LazyFrame | pl.DataFrame,
    models: Models,
    role: ModelRole,
    judging: Judging,
    judge_name: str,
    earlier: Sequence[tuple[str | None, pl.DataFrame]],
) -> _Plan:
    caller, prompt = models.role(judge_name, role), load_prompt("support", role.prompt)
    version = version_of(caller, prompt)
    pairs = _pairs(questions, nuggets, pools, chunks)
    carried = earlier if judging.carry_over and role.cache != "refresh" else ()
    known = _known(carried, caller.model, version, models.snapshot)
    asked = pairs.join(known, on=_PAIR, how="anti")
    work = _work(asked, questions, nuggets, chunks)
    statistics = _statistics(work, pairs, chunks) if work and caller.judge_kind == "heuristic" else None
    return _Plan(caller, prompt, version, role, judging, pairs, known, asked, work, statistics)


def _pairs(
    questions: pl.DataFrame, nuggets: pl.DataFrame, pools: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame
) -> pl.DataFrame:
    """Every nugget with every chunk of its question's pool: ids of the three, hashes of the two texts."""
    if unknown := sorted(set(pools["question_id"]) - set(questions["question_id"])):
        raise EvaluationError(_unknown("questions", unknown, "questions"))
    hashes = (
        chunks.lazy()
        .select("doc_id", "content_hash")
        .join(pools.lazy().select("doc_id").unique(), on="doc_id", how="semi")
        .collect()
    )
    pooled = pools.select("question_id", "doc_id").unique().join(hashes, on="doc_id", how="left", validate="m:1")
    if missing := sorted(set(pooled.filter(pl.col("content_hash").is_null())["doc_id"])):
        raise EvaluationError(_unknown("documents", missing, "corpus"))
    own = nuggets.select(
        "question_id",
        "nugget_id",
        nugget_hash=pl.col("text").map_elements(nugget_hash, return_dtype=pl.String()),
    )
    return own.join(pooled, on="question_id", how="inner")


def _unknown(what: str, ids: Sequence[str], where: str) -> str:
    named = ", ".join(ids[:3]) + (" ..." if len(ids) > 3 else "")
    return f"the pools name {len(ids)} {what} that the {where} do not hold: {named}; build the pools again"


def _known(
    earlier: Iterable[tuple[str | None, pl.DataFrame]], judge: str, prompt: str, own: str | None
) -> pl.DataFrame:
    """Verdicts of other snapshots by question, text of the nugget and text of the chunk; errors are not among them.

    What another snapshot carried over from this one, `own`, was judged here.
    """
    schema = TABLES["judgments"].schema
    columns = [*_PAIR, *_VERDICT]
    frames = [pl.DataFrame(schema={name: schema[name] for name in columns})]
    frames += [
        judgments.filter(pl.col("judge") == judge, pl.col("prompt") == prompt, pl.col("verdict") != ERROR)
        .with_columns(carried_from=pl.coalesce("carried_from", pl.lit(snapshot, dtype=pl.String())))
        .with_columns(carried_from=pl.when(pl.col("carried_from").ne_missing(own)).then("carried_from"))
        .select(columns)
        for snapshot, judgments in earlier
        if "nugget_hash" in judgments.columns
    ]
    # A pair has one verdict in each snapshot; sorted, so that the choice among equals does not hang on row order.
    ordered = [frame.sort(columns) for frame in frames]
    return pl.concat(ordered).unique(list(_PAIR), keep="first", maintain_order=True)


def _work(
    asked: pl.DataFrame, questions: pl.DataFrame, nuggets: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame
) -> list[_Question]:
    """What is to be judged, by question; each text once."""
    texts = {text.content_hash: text for text in _texts(asked, chunks)}
    by_question: dict[str, list[_Nugget]] = {}
    for row in nuggets.sort("question_id", "position").to_dicts():
        nugget = _Nugget(row["nugget_id"], nugget_hash(row["text"]), row["text"])
        by_question.setdefault(row["question_id"], []).append(nugget)
    wanted: dict[str, dict[str, set[str]]] = {}
    for question_id, content_hash, nugget_id in asked.select("question_id", "content_hash", "nugget_id").iter_rows():
        wanted.setdefault(question_id, {}).setdefault(content_hash, set()).add(nugget_id)
    rows = {row["question_id"]: row for row in questions.to_dicts() if row["question_id"] in wanted}
    return [
        _Question(
            question_id,
            rows[question_id],
            tuple(by_question[question_id]),
            tuple(texts[content_hash] for content_hash in sorted(of_question)),
            {content_hash: frozenset(nugget_ids) for content_hash, nugget_ids in of_question.items()},
        )
        for question_id, of_question in sorted(wanted.items())
    ]


def _texts(pairs: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame) -> list[_Text]:
    """The distinct texts among the chunks of some pairs, ordered by hash."""
    # One chunk stands for all that hold its text: the first by id, so that a repeated run sees the same.
    docs = pairs.lazy().group_by("content_hash").agg(pl.col("doc_id").min())
    rows = chunks.lazy().join(docs, on="doc_id", how="semi").select("content_hash", "text").collect()
    return [_Text(content_hash, text) for content_hash, text in rows.sort("content_hash").iter_rows()]


def _ask(plan: _Plan, progress: Callable[[int, int], None] | None) -> pl.DataFrame:
    """Ask the judge about all the work; a verdict for each wanted nugget_id and content_hash."""
    batches = plan.batches()
    # Prompts are long: only as many are held as can be on their way, unless a batch API takes them all at once.
    gate = asyncio.Semaphore((len(batches) or 1) if plan.role.batch else 2 * plan.role.concurrency)
    done = 0

    async def one(question: _Question, batch: tuple[_Text, ...]) -> list[dict[str, Any]]:
        nonlocal done
        async with gate:
            rows = await _judge(plan, question, batch)
        done += 1
        if progress is not None:
            progress(done, len(batches))
        return rows

    schema = TABLES["judgments"].schema
    names = ["nugget_id", "content_hash", *_VERDICT]
    rows = [row for rows in run([one(*batch) for batch in batches]) for row in rows]
    return pl.DataFrame(rows, schema={name: schema[name] for name in names})


async def _judge(plan: _Plan, question: _Question, batch: tuple[_Text, ...]) -> list[dict[str, Any]]:
    """Judge one batch; a reply cut off by its length is asked for again in halves, down to single chunks."""
    request, notes = plan.request(question, batch)
    read = partial(read_support, documents=len(batch), nuggets=len(question.nuggets))
    outcome = await plan.caller.call(request, read)
    if outcome.kind == "length" and len(batch) > 1:
        middle = len(batch) // 2
        halves = [_judge(plan, question, half) for half in (batch[:middle], batch[middle:])]
        return [row for rows in await asyncio.gather(*halves) for row in rows]
    rows = []
    for position, (text, note) in enumerate(zip(batch, notes, strict=True)):
        verdict = None if outcome.value is None else outcome.value[position]
        for number, nugget in enumerate(question.nuggets):
            if nugget.nugget_id in question.wanted[text.content_hash]:
                # A reason speaks of nuggets by their number in the call; the row says which number is its own.
                which = f"[nugget {number + 1} of {len(question.nuggets)}]"
                row = _error(explain(outcome)) if verdict is None else _verdict(verdict, number, which, text.text, note)
                key = {"nugget_id": nugget.nugget_id, "content_hash": text.content_hash}
                rows.append({**key, **row, "reply": outcome.reply, "carried_from": None})
    return rows


def _statistics(
    work: Sequence[_Question], pairs: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame
) -> heuristic.PooledTexts:
    """What the heuristic needs to know of the whole pool: how common its terms are, and where they stand.

    Texts whose verdicts are carried over count as well, so that the rest is weighed as if all were judged here.
    """
    wanted: dict[str, list[str]] = {}
    for question in work:
        for text in question.texts:
            wanted.setdefault(text.content_hash, []).extend(nugget.text for nugget in question.nuggets)
    return heuristic.PooledTexts({text.content_hash: text.text for text in _texts(pairs, chunks)}, wanted)


def _verdict(verdict: DocumentVerdict, nugget: int, which: str, text: str, note: str | None) -> dict[str, Any]:
    quote = verdict.quotes.get(nugget)
    return {
        "verdict": UNSUPPORTED if quote is None else SUPPORTED,
        "reason": f"{which} {verdict.reason}" if note is None else f"{which} {verdict.reason} {note}",
        "quote": quote,
        "quote_found": None if quote is None else quote_stands_in(quote, text),
    }


def _error(why: str) -> dict[str, Any]:
    return {"verdict": ERROR, "reason": why, "quote": None, "quote_found": None}
