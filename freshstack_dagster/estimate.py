"""What building a topic at a snapshot will cost, role by role, before anything is paid.

The requests are those the stages would send, made from the tables that stand. Where a table is not built, or will be
built anew by another model, typical sizes stand in for it, and the estimate says which.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from freshstack_dagster.corpus.tokens import count_tokens
from freshstack_dagster.evaluation.answer_files import read_answers
from freshstack_dagster.evaluation.answers import answer_documents
from freshstack_dagster.evaluation.contamination import closed_book_documents
from freshstack_dagster.judging.annotation import annotator_name, sample_pools
from freshstack_dagster.judging.nuggets import nugget_requests, question_text, write_nuggets
from freshstack_dagster.judging.statements import salient_statements
from freshstack_dagster.judging.support import judge_support, support_requests
from freshstack_dagster.judging.variants import variant_requests, write_variants
from freshstack_dagster.lake import Lake
from freshstack_dagster.language_models import Models, Request
from freshstack_dagster.language_models.cache import read_reply, reply_key
from freshstack_dagster.language_models.estimate import Estimate, estimate
from freshstack_dagster.language_models.providers import replay
from freshstack_dagster.retrieval.pools import build_pools
from freshstack_dagster.retrieval.retrieve import retrieve
from freshstack_dagster.settings import Budget, ModelRole, Places, Roles, Topic, load_topic
from freshstack_dagster.tables import TABLES

# What the prompt asks for at most is 250 words.
TOKENS_A_CLOSED_BOOK_ANSWER = 300
# Over topics built here with the default retrievers.
POOL_PER_DEPTH = 2.8
TOKENS_A_POOLED_CHUNK = 1200
# Pooled chunks are longer than those of the corpus at large: what says more is found more often.
LONGER_IN_POOLS = 1.5
# Share of chunk texts that are the same after one month and after twelve (two published topics).
SAME_AFTER_MONTH, SAME_AFTER_YEAR = 0.84, 0.24

# Questions of an earlier snapshot or another topic whose replies show how long this model's replies are.
SIZED_BY_QUESTIONS = 25
# For each question that a pilot judges, so many have their texts written.
TEXTS_A_PILOT = 3
# Questions whose texts by the models are known before their pools say how large the others' will be.
ENOUGH = 3
# Retrievers that take no money, no weights and little time: with them a pool can be foretold.
FREE_RETRIEVERS = ("bm25", "bm25_code", "lsa")

CLOSED_BOOK = "closed_book_answer"
TOPIC_ROLES = ("nuggets", "sub_questions", CLOSED_BOOK)
EXACT = "exact requests"
TYPICAL = "typical sizes"


@dataclass(frozen=True)
class Line:
    """What one role will be asked in one stage, with and without verdicts carried over, and what that rests on."""

    stage: str
    role: ModelRole
    found: Estimate
    without_carry_over: Estimate
    basis: str


@dataclass(frozen=True)
class BuildEstimate:
    """The lines of an estimate, and everything that was assumed, a sentence each."""

    lines: tuple[Line, ...]
    assumptions: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)

    def table(self) -> pl.DataFrame:
        """A row a stage and role; a price that is unknown is null, as is the price by batch where there is no batch."""
        return pl.DataFrame(
            [
                {
                    "stage": line.stage,
                    "model": line.found.model,
                    "requests": line.found.requests,
                    "cached": line.found.cached,
                    "calls": line.found.calls,
                    "tokens_in": line.found.input_tokens,
                    "tokens_out": line.found.output_tokens,
                    "dollars": line.found.dollars,
                    "by_batch": line.found.batch_dollars,
                    "at_most": line.found.most_dollars,
                    "no_carry_over": line.without_carry_over.dollars,
                    "basis": line.basis,
                }
                for line in self.lines
            ],
            schema={
                **dict.fromkeys(("stage", "model"), pl.String()),
                **dict.fromkeys(("requests", "cached", "calls", "tokens_in", "tokens_out"), pl.Int64()),
                **dict.fromkeys(("dollars", "by_batch", "at_most", "no_carry_over"), pl.Float64()),
                "basis": pl.String(),
            },
        )

    def printed(self) -> pl.DataFrame:
        """The table for a terminal: unknown prices say so, and what there is not is a dash."""
        table, called = self.table(), pl.col("calls") > 0

        def dollars(name: str, lacking: str) -> pl.Expr:
            known = pl.col(name).map_elements(lambda value: f"{value:.4f}", return_dtype=pl.String())
            unknown = called & pl.col("dollars").is_null()
            return pl.coalesce(known, pl.when(unknown).then(pl.lit("unknown")).otherwise(pl.lit(lacking)))

        return table.select(
            "stage",
            "model",
            "calls",
            "cached",
            pl.col("tokens_in").alias("tokens in"),
            pl.col("tokens_out").alias("out"),
            dollars("dollars", "0").alias("dollars"),
            dollars("by_batch", "-").alias("by batch"),
            dollars("no_carry_over", "0").alias("no carry-over"),
            "basis",
        )

    def dollars(self, *, batch: bool | None = None, carry_over: bool = True) -> float:
        """Dollars of all roles whose price is known, by batch where there is one; None takes roles as they are set."""
        total = 0.0
        for line in self.lines:
            one = line.found if carry_over else line.without_carry_over
            by_batch = (line.role.batch if batch is None else batch) and one.batch_dollars is not None
            total += (one.batch_dollars if by_batch else one.dollars) or 0.0
        return total

    @property
    def unknown_prices(self) -> list[str]:
        """Models that will be called and whose price is unknown: their dollars stand in no sum."""
        return sorted({line.found.model for line in self.lines if line.found.calls and line.found.dollars is None})

    def summary(self) -> list[str]:
        """The sums, what stands in none, what was assumed and what would make it surer, a line each."""
        more = f" plus the calls of {', '.join(self.unknown_prices)}" if self.unknown_prices else ""
        lines = [
            f"as the topic is set: ${self.dollars():.4f}{more}",
            *(
                f"{'by batch' if batch else 'one by one'}, {'with' if carried else 'without'} carry-over: "
                f"${self.dollars(batch=batch, carry_over=carried):.4f}{more}"
                for batch, carried in itertools.product((False, True), (True, False))
            ),
        ]
        most = sum(line.found.most_dollars or 0.0 for line in self.lines)
        lines.append(f"if every reply were as long as it may be, one by one: ${most:.2f}{more}")
        lines += [
            f"the price of {model} is unknown and stands in no sum: name it in a file, and the file in budget.prices"
            for model in self.unknown_prices
        ]
        for cap, limit in (("per_run", self.budget.per_run), ("per_month", self.budget.per_month)):
            if limit is not None and self.dollars() > limit:
                lines.append(f"above budget.{cap} of ${limit:g}: the build will stop there, and can go on from there")
        lines += [f"assumed: {assumption}" for assumption in self.assumptions]
        if any(line.stage.endswith("pool") and line.found.calls and line.basis != EXACT for line in self.lines):
            lines.append(
                "nearly all is paid for judging: when the corpus is built, which costs nothing, the pool is foretold; "
                "when everything up to `pools` is materialised in the UI, the requests are exact"
            )
        if pending := sorted({line.stage for line in self.lines if line.found.calls and not line.found.calibrated_on}):
            lines.append(
                f"the length of replies is a typical one for {', '.join(pending)}; with --pilot 5 the models are asked "
                "about five questions first, and their replies, which the build uses, correct the figures"
            )
        return lines


def estimate_build(
    places: Places, topic: Topic, snapshot: str, *, say: Callable[[str], None] = lambda line: None
) -> BuildEstimate:
    """Estimate what `build` would pay for a topic at a snapshot; calls nobody and writes no table.

    `say` is told what takes long. Raises FreshstackError where a setting, a source or a file of answers is wrong.
    """
    topic.asked_before_for(snapshot)  # an impossible month is refused before anything is read
    work = _Work(places, topic, snapshot, say)
    lines = [*work.topic_lines(), *work.answer_lines(), *work.pool_lines()]
    return BuildEstimate(tuple(lines), tuple(dict.fromkeys(work.assumptions)), topic.budget)


def pilot(
    places: Places, topic: Topic, snapshot: str, questions: int, *, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Ask the topic's models about a few questions, so that an estimate rests on their own texts and replies.

    The questions are drawn by a hash of their ids and go through every role, the judge and the annotators included if
    a corpus stands. Three times as many have their texts written and are not judged: that costs little, and pools
    differ more from question to question than replies do. What is asked is what `build` will ask, and `build` finds the
    replies in the cache: nothing is paid twice. The topic's budget holds, and the calls go to `model_calls`. Returns
    the counts of `Models.summary`. Raises FreshstackError for a setting or source that is wrong, or a model that stops.
    """
    topic.asked_before_for(snapshot)
    work = _Work(places, topic, snapshot, say)
    models = Models(cache=work.models.folder, budget=topic.budget, snapshot=snapshot, progress=say)
    try:
        _ask_a_few(work, models, questions)
    finally:
        if (calls := models.calls()).height:
            work.lake.append("model_calls", calls, topic=topic.name)
    return models.summary()


def _ask_a_few(work: _Work, models: Models, questions: int) -> None:
    """Have texts written for a few questions, and fewer judged."""
    topic = work.topic
    single = {name: getattr(topic.roles, name).model_copy(update={"batch": False}) for name in (*TOPIC_ROLES, "judge")}
    drawn = pl.col("question_id").map_elements(_hash, return_dtype=pl.String())
    few = work.asked.sort(drawn).head(TEXTS_A_PILOT * questions)
    without = few.join(work.nuggets.filter(pl.col("prompt") != _STAND_IN), on="question_id", how="anti")
    if without.height:
        write_nuggets(without, models, single["nuggets"])
    for name in work._model_variants:
        without = few.join(work.written_variants.filter(variant=name), on="question_id", how="anti")
        if without.height:
            write_variants(without, work.nuggets, models, topic.roles.model_copy(update=single), [name])
    work = _Work(work.places, topic, work.snapshot, work.say)
    pool = work._pool()
    if pool.basis == TYPICAL:
        work.say("no corpus stands, so the judge was asked nothing: build it, which costs nothing, and ask again")
        return
    own = few.filter(pl.col("question_id").is_in(work.known)).head(questions)
    pools = pool.pools.join(own, on="question_id", how="semi")

    def judge(name: str, role: ModelRole, pools: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame) -> None:
        role = role.model_copy(update={"batch": False})
        judge_support(own, work.nuggets, pools, chunks, models, role, topic.judging, judge_name=name)

    answers, of_questions = closed_book_documents(work.written_variants.join(own, on="question_id", how="semi"))
    judge("judge", topic.roles.judge, of_questions, answers)
    judge("judge", topic.roles.judge, pools, pool.chunks)
    for name, role in sorted(topic.roles.annotators.items()):
        judge(annotator_name(name), role, sample_pools(pools, pool.chunks, topic.judging), pool.chunks)


@dataclass(frozen=True)
class _Pool:
    """The pool to estimate on: the snapshot's own, another snapshot's, or an invented one; and how to scale it.

    `factor` is how much larger the true one is thought to be, `carried` the share of its verdicts that another
    snapshot is thought to hold (None: the tables say it exactly).
    """

    questions: pl.DataFrame
    pools: pl.DataFrame
    chunks: pl.LazyFrame
    basis: str
    factor: float = 1.0
    carried: float | None = None


@dataclass
class _Work:
    places: Places
    topic: Topic
    snapshot: str
    say: Callable[[str], None]
    assumptions: list[str] = field(default_factory=list)
    invented_answers: int = 0

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.places.lake)

    @cached_property
    def models(self) -> Models:
        return Models(cache=self.places.cache / "language_models", budget=self.topic.budget, snapshot=self.snapshot)

    @cached_property
    def questions(self) -> pl.DataFrame:
        if self._stands("questions"):
            return self.lake.read("questions", self.topic.name)
        from freshstack_dagster.stackexchange.sources import load_questions

        self.assumptions.append("the table questions is not built: they were read from the source")
        return load_questions(self.topic, cache=self.places.cache, progress=self.say).questions

    @cached_property
    def asked(self) -> pl.DataFrame:
        """The questions of the snapshot."""
        before = self.topic.asked_before_for(self.snapshot)
        return self.questions.filter(pl.col("asked_at").is_null() | (pl.col("asked_at") < before))

    @cached_property
    def nuggets(self) -> pl.DataFrame:
        """The nuggets that the topic's model wrote; the heuristic's statements for questions that have none by it."""
        role = self.topic.roles.nuggets
        model = self.models.role("nuggets", role).model
        standing = TABLES["nuggets"].empty()
        if self._stands("nuggets"):
            standing = self.lake.read("nuggets", self.topic.name).filter(pl.col("model") == model)
        lacking = self.questions.join(standing, on="question_id", how="anti")
        if (told := self._in_cache(lacking, "nuggets", role)).height:
            standing = pl.concat([standing, write_nuggets(told, self.frozen, _frozen(role))[0]])
            lacking = self.questions.join(standing, on="question_id", how="anti")
        stand_ins = _stand_in_nuggets(lacking, model)
        if lacking.height:
            tokens = sum(count_tokens(text) for text in stand_ins["text"]) / max(1, stand_ins.height)
            self.assumptions.append(
                f"{lacking.height} questions have no nuggets by {model} yet: the heuristic's statements stand in for "
                f"them, {stand_ins.height / lacking.height:.1f} a question of {tokens:.0f} tokens each"
            )
        return pl.concat([standing, stand_ins])

    @cached_property
    def frozen(self) -> Models:
        """Models that only read the cache: what a run that stopped, or a pilot, has paid for."""
        return Models(cache=self.places.cache / "language_models", budget=Budget())

    def _in_cache(self, questions: pl.DataFrame, name: str, role: ModelRole) -> pl.DataFrame:
        """Those questions to which a role's reply lies in the cache."""
        if role.provider == "heuristic" or not questions.height:
            return questions.clear()
        asked_as = replay.original(name, role) if role.provider == "replay" else role
        requests = self._topic_requests(questions, name, self.frozen, _frozen(role))
        found = [read_reply(self.models.store, reply_key(asked_as, request, 1)) is not None for request in requests]
        return questions.filter(pl.Series(found, dtype=pl.Boolean))

    @staticmethod
    def _topic_requests(questions: pl.DataFrame, name: str, models: Models, role: ModelRole) -> list[Request]:
        if name == "nuggets":
            return nugget_requests(questions, models, role)
        return variant_requests(questions, models, Roles().model_copy(update={name: role}), [name])[name]

    @cached_property
    def written_variants(self) -> pl.DataFrame:
        """The query variants that the topic's models wrote: in the table, or as replies in the cache."""
        schema = TABLES["query_variants"].schema
        standing = pl.DataFrame(schema=schema)
        if self._stands("query_variants"):
            standing = self.lake.read("query_variants", self.topic.name)
        parts = [pl.DataFrame(schema=schema)]
        for name in self._model_variants:
            role = getattr(self.topic.roles, name)
            model = self.models.role(name, role).model
            own = standing.filter(pl.col("variant") == name, pl.col("model") == model)
            told = self._in_cache(self.questions.join(own, on="question_id", how="anti"), name, role)
            roles = Roles().model_copy(update={name: _frozen(role)})
            parts += [own, write_variants(told, self.nuggets, self.frozen, roles, [name])[0]]
        return pl.concat(parts)

    @property
    def _model_variants(self) -> list[str]:
        """The wanted query variants that a language model writes."""
        roles, wanted = self.topic.roles, self.topic.pooling.variants
        return [name for name in ("sub_questions", CLOSED_BOOK) if name in wanted and _asks(getattr(roles, name))]

    @cached_property
    def known(self) -> list[str]:
        """Questions of the snapshot of which every text that pools is there as the topic's models wrote it."""
        invented = self.nuggets.filter(pl.col("prompt") == _STAND_IN)
        known = self.asked.select("question_id").join(invented, on="question_id", how="anti")
        for name in self._model_variants:
            known = known.join(self.written_variants.filter(variant=name), on="question_id", how="semi")
        return sorted(known["question_id"])

    @cached_property
    def nuggets_stand(self) -> bool:
        """Whether no nugget is an invented one, so that verdicts on them can be carried over."""
        return bool((self.nuggets["prompt"] != _STAND_IN).all())

    def topic_lines(self) -> list[Line]:
        """Nuggets, sub-questions and closed-book answers: from the questions alone, so the requests are exact."""
        roles = self.topic.roles
        asked = {"nuggets": nugget_requests(self.questions, self.models, roles.nuggets)}
        asked |= variant_requests(self.questions, self.models, roles, self.topic.pooling.variants)
        return [self._line(name, name, getattr(roles, name), requests) for name, requests in asked.items()]

    def answer_lines(self) -> list[Line]:
        """The judge on closed-book answers and on the answers of systems."""
        lines = []
        judged = self._judged_answers("closed_book_judgments", *closed_book_documents(self._closed_book_answers()))
        basis = EXACT if self.nuggets_stand and not self.invented_answers else TYPICAL
        lines.append(self._line("judge: closed-book answers", "judge", self.topic.roles.judge, *judged, basis=basis))
        answers = read_answers(self.places.submitted_answers / self.topic.name, self.questions["question_id"])
        if answers.height:
            judged = self._judged_answers("answer_judgments", *answer_documents(answers))
            basis = EXACT if self.nuggets_stand else "typical nuggets"
            lines.append(self._line("judge: answers of systems", "judge", self.topic.roles.judge, *judged, basis=basis))
        return lines

    def pool_lines(self) -> list[Line]:
        """The judge and the annotators on the pool."""
        pool = self._pool()
        roles = self.topic.roles
        self._note_rerankers()
        lines = [self._pool_line("judge: pool", "judge", roles.judge, pool, pool.pools, "judgments")]
        sample = sample_pools(pool.pools, pool.chunks, self.topic.judging) if roles.annotators else pool.pools
        for name, role in sorted(roles.annotators.items()):
            stage = annotator_name(name)
            lines.append(self._pool_line(f"{stage}: pool", stage, role, pool, sample, "annotations"))
        return lines

    def _note_rerankers(self) -> None:
        """Say what language models that rerank will be asked; their windows hang on their own replies."""
        for reranker in self.topic.rerankers:
            if reranker.kind == "llm":
                window, step = (
                    int(reranker.options.get(name, usual)) for name, usual in (("window", 20), ("step", 10))
                )
                windows = 1 + max(0, math.ceil((reranker.depth - window) / step))
                runs = len(reranker.options.get("retrievers", ())) or len(self.topic.retrievers) + 1
                runs *= len(reranker.options.get("variants", ("question",)))
                self.assumptions.append(
                    f"nothing for the reranker {reranker.name} ({reranker.model}), which stands in no sum: it makes up "
                    f"to {windows * runs * self.asked.height:,} calls of up to {window} chunks each"
                )

    def _stands(self, table: str, snapshot: str | None = None) -> bool:
        return self.lake.current(table, self.topic.name, snapshot) is not None

    def _line(
        self,
        stage: str,
        name: str,
        role: ModelRole,
        requests: Sequence[Request],
        all_requests: Sequence[Request] | None = None,
        basis: str = EXACT,
        answered: Callable[[], Sequence[Request]] | None = None,
        *,
        anew: bool = False,
    ) -> Line:
        self.say(f"{stage}: counting {len(requests):,} requests")
        found = self._estimate(name, role, requests, answered, anew)
        same = all_requests is None or all_requests is requests
        whole = found if same else self._estimate(name, role, all_requests or (), answered, anew)
        return Line(stage, role, found, whole, basis)

    def _estimate(
        self,
        name: str,
        role: ModelRole,
        requests: Sequence[Request],
        answered: Callable[[], Sequence[Request]] | None,
        anew: bool,
    ) -> Estimate:
        """An estimate, corrected by the replies to `answered` requests where it knows none of its own."""
        found = estimate(self.models, name, role, requests, anew=anew)
        if found.calibrated_on or not found.calls or role.cache == "refresh":
            return found
        own = {reply_key(role, request, 1) for request in requests}

        def known(asked: Sequence[Request]) -> list[Request]:
            keys = {reply_key(role, request, 1): request for request in asked}
            return [
                request
                for key, request in keys.items()
                if key not in own and read_reply(self.models.store, key) is not None
            ]

        replied = known(answered() if answered is not None else ()) or known(self._asked_in_other_topics(name, role))
        if not replied:
            return found
        with_known = estimate(self.models, name, role, [*requests, *replied])
        return replace(with_known, requests=found.requests, cached=found.cached)

    def _asked_in_other_topics(self, name: str, role: ModelRole) -> list[Request]:
        """What the same model was asked, by the same prompt, in other topics of this lake."""
        requests: list[Request] = []
        for path in sorted(self.places.topics.glob("*.yaml")):
            if path.stem == self.topic.name or self.lake.current("questions", path.stem, None) is None:
                continue
            other = _Work(self.places, load_topic(path), self.snapshot, self.say)
            if name in TOPIC_ROLES:
                few = other.questions.head(SIZED_BY_QUESTIONS)
                requests += self._topic_requests(few, name, self.frozen, _frozen(role))
            else:
                requests += other._asked_elsewhere(name, role, "judgments" if name == "judge" else "annotations")
        return requests

    def _pool_line(self, stage: str, name: str, role: ModelRole, pool: _Pool, pools: pl.DataFrame, table: str) -> Line:
        def requests(earlier: Sequence[tuple[str | None, pl.DataFrame]]) -> list[Request]:
            return support_requests(
                pool.questions,
                self.nuggets,
                pools,
                pool.chunks,
                self.models,
                role,
                self.topic.judging,
                judge_name=name,
                earlier=earlier,
            )

        def answered() -> list[Request]:
            return self._asked_elsewhere(name, role, table)

        whole = requests(())
        if pool.carried is None:
            earlier = self._earlier(table)
            fresh = requests(earlier) if earlier else whole
            line = self._line(stage, name, role, fresh, whole, pool.basis, answered)
            left = 1.0
        else:
            # Its replies are in the cache, but the new month's batches are others.
            line = self._line(stage, name, role, whole, whole, pool.basis, answered, anew=True)
            left = 1 - pool.carried * self._judged_elsewhere(name, role, table)
        return replace(
            line,
            found=_scaled(line.found, pool.factor * left),
            without_carry_over=_scaled(line.without_carry_over, pool.factor),
        )

    def _earlier(self, table: str) -> list[tuple[str | None, pl.DataFrame]]:
        """Verdicts as the stages take them over: this snapshot's own first, then the others', oldest first."""
        name = self.topic.name
        snapshots = self.lake.snapshots(table, name)
        own = [(None, self.lake.read(table, name, self.snapshot))] if self.snapshot in snapshots else []
        return [*own, *((other, self.lake.read(table, name, other)) for other in snapshots if other != self.snapshot)]

    def _judged_elsewhere(self, name: str, role: ModelRole, table: str) -> bool:
        """Whether some other snapshot holds verdicts of this judge that could be carried over."""
        if not self.topic.judging.carry_over or role.cache == "refresh" or not self.nuggets_stand:
            return False
        judge = self.models.role(name, role).model
        return any((judgments["judge"] == judge).any() for _, judgments in self._earlier(table))

    def _asked_elsewhere(self, name: str, role: ModelRole, table: str) -> list[Request]:
        """What this judge was asked about a few questions in the first snapshot that it judged itself."""
        judge = self.models.role(name, role).model
        for snapshot in self.lake.snapshots(table, self.topic.name):
            judgments = self.lake.read(table, self.topic.name, snapshot).filter(
                pl.col("judge") == judge, pl.col("carried_from").is_null()
            )
            few = judgments.select("question_id").unique().sort("question_id").head(SIZED_BY_QUESTIONS)
            if few.height and self._stands("pools", snapshot) and self._stands("chunks", snapshot):
                pools = self.lake.read("pools", self.topic.name, snapshot).join(few, on="question_id", how="semi")
                chunks = self.lake.scan("chunks", self.topic.name, snapshot).select("doc_id", "content_hash", "text")
                if table == "annotations":
                    pools = sample_pools(pools, chunks, self.topic.judging)
                return support_requests(
                    self.questions,
                    self.nuggets,
                    pools,
                    chunks,
                    self.models,
                    role,
                    self.topic.judging,
                    judge_name=name,
                )
        return []

    def _judged_answers(
        self, table: str, chunks: pl.DataFrame, pools: pl.DataFrame
    ) -> tuple[list[Request], list[Request]]:
        """What the judge is asked about answers: what is not known yet, and all."""

        def requests(earlier: Sequence[tuple[str | None, pl.DataFrame]]) -> list[Request]:
            return support_requests(
                self.questions,
                self.nuggets,
                pools.join(self.questions, on="question_id", how="semi"),
                chunks,
                self.models,
                self.topic.roles.judge,
                self.topic.judging,
                earlier=earlier,
            )

        if not self._stands(table):
            whole = requests(())
            return whole, whole
        return requests([(None, self.lake.read(table, self.topic.name))]), requests(())

    def _closed_book_answers(self) -> pl.DataFrame:
        """The closed-book answers that the topic's model wrote, and typical ones where it wrote none yet."""
        schema = TABLES["query_variants"].schema
        role = self.topic.roles.closed_book_answer
        if CLOSED_BOOK not in self.topic.pooling.variants or role.provider == "heuristic":
            return pl.DataFrame(schema=schema)
        model = self.models.role(CLOSED_BOOK, role).model
        standing = self.written_variants.filter(variant=CLOSED_BOOK)
        lacking = self.questions.join(standing, on="question_id", how="anti")["question_id"].to_list()
        self.invented_answers = len(lacking)
        if lacking:
            self.assumptions.append(
                f"{len(lacking)} questions have no closed-book answer by {model} yet: "
                f"{TOKENS_A_CLOSED_BOOK_ANSWER} tokens each"
            )
        rows = [
            {
                **dict.fromkeys(schema.names()),
                "question_id": question_id,
                "variant": CLOSED_BOOK,
                "setting": "inference",
                "text": _filler(question_id, TOKENS_A_CLOSED_BOOK_ANSWER),
                "model": model,
            }
            for question_id in lacking
        ]
        return pl.concat([standing, pl.DataFrame(rows, schema=schema)])

    def _pool(self) -> _Pool:
        """The snapshot's pool, else one foretold in its corpus, else the nearest snapshot's, else a typical one."""
        name = self.topic.name
        # A pool that stands was found with other texts where the models' are not in the tables yet.
        renewed = not self.nuggets_stand and len(self.known) >= ENOUGH
        if renewed and (foretold := self._foretold_pool()) is not None:
            return foretold
        if self._stands("pools", self.snapshot) and self._stands("chunks", self.snapshot):
            return self._standing_pool(self.snapshot)
        if self._stands("chunks", self.snapshot) and (foretold := self._foretold_pool()) is not None:
            return foretold
        others = [other for other in self.lake.snapshots("pools", name) if self._stands("chunks", other)]
        if others:
            nearest = min(others, key=lambda other: (_months(other, self.snapshot), other))
            return self._standing_pool(nearest)
        return self._foretold_pool() or self._typical_pool()

    def _standing_pool(self, snapshot: str) -> _Pool:
        name = self.topic.name
        pools = self.lake.read("pools", name, snapshot).join(self.questions, on="question_id", how="semi")
        chunks = self.lake.scan("chunks", name, snapshot).select("doc_id", "content_hash", "text")
        factor, carried, basis = 1.0, None, EXACT
        if not self.nuggets_stand:
            basis = "pool as it stands"
        if snapshot == self.snapshot:
            pools = pools.join(self.asked, on="question_id", how="semi")
        pooled = pools["question_id"].n_unique()
        factor *= self.asked.height / max(1, pooled) * self._growth(pools, snapshot)
        if snapshot != self.snapshot:
            months = _months(snapshot, self.snapshot)
            carried, why = self._same_texts(pools, chunks), f"as its texts stand in the corpus of {self.snapshot}"
            if carried is None:
                carried, why = same_after(months), f"after {months} months"
            basis = f"pool of {snapshot}"
            self.assumptions.append(
                f"the pool of {self.snapshot} is not built: that of {snapshot} stands in for it, and {carried:.0%} of "
                f"its verdicts are carried over, if by the same judge, {why}"
            )
        if pooled != self.asked.height:
            self.assumptions.append(
                f"the pool of {snapshot} has {pooled} questions, {self.snapshot} has {self.asked.height}: in proportion"
            )
        return _Pool(self.questions, pools, chunks, basis, factor, carried)

    def _same_texts(self, pools: pl.DataFrame, chunks: pl.LazyFrame) -> float | None:
        """Share of another snapshot's pooled texts that stand in this one's corpus; None if that is not built."""
        if not self._stands("chunks", self.snapshot) or not pools.height:
            return None
        here = self.lake.scan("chunks", self.topic.name, self.snapshot).select("content_hash").unique()
        pooled = pools.lazy().select("doc_id").join(chunks.select("doc_id", "content_hash"), on="doc_id")
        return pooled.join(here, on="content_hash", how="semi").select(pl.len()).collect().item() / pools.height

    def _growth(self, pools: pl.DataFrame, snapshot: str) -> float:
        """How much larger a pool gets by query variants that it lacks and the topic's models will write."""
        roles, wanted = self.topic.roles, set(self.topic.pooling.variants)
        found = {variant for own in _fused(pools, self.topic.pooling.depth)["variants"] for variant in own}
        silent = {name for name in (CLOSED_BOOK,) if getattr(roles, name).provider == "heuristic"}
        lacking = sorted(wanted - found - silent)
        if not lacking or not found:
            return 1.0
        growth = pool_growth(_fused(pools, self.topic.pooling.depth)["variants"].to_list(), len(found), len(lacking))
        self.assumptions.append(
            f"the pool of {snapshot} was found without {' and '.join(lacking)}: {growth - 1:.0%} more documents with it"
        )
        return growth

    def _foretold_pool(self) -> _Pool | None:
        """The pool that the topic's free retrievers find in the nearest corpus; None if there is neither.

        They are asked with the texts that stand, and with the heuristic's where a model will write others: question and
        answer, which pool most, are known as they are.
        """
        name, topic = self.topic.name, self.topic
        snapshots = self.lake.snapshots("chunks", name)
        retrievers = tuple(one for one in topic.retrievers if one.kind in FREE_RETRIEVERS)
        if not snapshots or not retrievers or not self.asked.height:
            return None
        nearest = min(snapshots, key=lambda other: (_months(other, self.snapshot), other))
        chunks = self.lake.scan("chunks", name, nearest)
        known = self.known if len(self.known) >= ENOUGH else []
        queries = self._queries(known)
        self.say(f"judge: pool: retrieving {queries.height:,} texts from the corpus of {nearest}")
        runs = retrieve(
            queries,
            chunks.select("doc_id", "path", "content_hash", "text").collect(),
            topic.model_copy(update={"retrievers": retrievers}),
            cache=self.places.cache,
        )
        found = build_pools(runs, topic.pooling)
        pools = found.filter(~pl.col("question_id").str.starts_with(_AS_FORETOLD))
        stand_ins = self._stood_in(queries)
        found_by = " and ".join(one.name for one in retrievers)
        written = f", and the heuristic's {' and '.join(stand_ins)} stand in for the models'" if stand_ins else ""
        self.assumptions.append(f"the pool is not built: {found_by} found one in the corpus of {nearest}{written}")
        of_known = pl.col("question_id").is_in(known)
        unknown, true = pools.filter(~of_known), pools.filter(of_known).height
        if not unknown.height:
            growth = 1.0
        elif known:
            growth = true / max(1, found.height - pools.height)
            self.assumptions.append(
                f"the pools of the {len(known)} questions whose texts the models wrote are {growth:.2f} times as large "
                "as with the heuristic's texts: so are the others'"
            )
        else:
            growth = self._growth(unknown, nearest)
        exact = not stand_ins and retrievers == topic.retrievers and nearest == self.snapshot and growth == 1
        return _Pool(
            self.questions,
            pools,
            chunks.select("doc_id", "content_hash", "text"),
            EXACT if exact and not topic.pooling.top_up else "foretold pool",
            (true + growth * unknown.height) / max(1, pools.height),
        )

    def _queries(self, known: Sequence[str]) -> pl.DataFrame:
        """The query variants of the snapshot's questions: the heuristic's where the models' are not there yet.

        Known questions stand twice, the second time as they would have been foretold.
        """
        wanted = self.topic.pooling.variants
        free = Models(cache=self.places.cache / "language_models", budget=Budget())
        rules, _ = write_variants(self.asked, self.nuggets, free, Roles(), wanted)
        written = self.written_variants.join(self.asked, on="question_id", how="semi")
        if not known:
            # Few are no measure, and a variant that only some have would pass for one that all have.
            written = written.filter((pl.col("variant") != CLOSED_BOOK) | pl.lit(self._all_closed_book))
        queries = pl.concat([written, rules.join(written, on=["question_id", "variant"], how="anti")])
        again = self.asked.filter(pl.col("question_id").is_in(known))
        stand_ins = _stand_in_nuggets(again, "")
        foretold, _ = write_variants(again, stand_ins, free, Roles(), wanted)
        return pl.concat([queries, foretold.with_columns(question_id=_AS_FORETOLD + pl.col("question_id"))])

    @property
    def _all_closed_book(self) -> bool:
        return self.asked.join(
            self.written_variants.filter(variant=CLOSED_BOOK), on="question_id", how="anti"
        ).is_empty()

    def _stood_in(self, queries: pl.DataFrame) -> list[str]:
        """The variants of which some text is the heuristic's and will be a model's, or is lacking."""
        true = queries.filter(~pl.col("question_id").str.starts_with(_AS_FORETOLD))
        rules = true.filter(pl.col("model") == "heuristic")["variant"].unique().to_list()
        return [
            *(["nuggets"] if not self.nuggets_stand else []),
            *(name for name in self._model_variants if name in rules),
        ]

    def _typical_pool(self) -> _Pool:
        name, judging = self.topic.name, self.topic.judging
        documents = math.ceil(POOL_PER_DEPTH * self.topic.pooling.depth)
        tokens, whence = TOKENS_A_POOLED_CHUNK, "a typical topic"
        snapshots = self.lake.snapshots("chunks", name)
        if snapshots:
            nearest = min(snapshots, key=lambda other: (_months(other, self.snapshot), other))
            mean = self.lake.scan("chunks", name, nearest).select(pl.col("tokens").mean()).collect().item() or tokens
            tokens, whence = round(LONGER_IN_POOLS * mean), f"the corpus of {nearest}"
            documents = min(documents, self.lake.scan("chunks", name, nearest).select(pl.len()).collect().item())
        tokens = min(tokens, judging.max_chunk_tokens, self.topic.max_tokens)
        self.assumptions.append(
            f"no pool is built: {documents} chunks a question of {tokens} tokens each, as in {whence}"
        )
        # One set of invented chunks serves every question: what counts is how many and how long.
        rows = [
            {
                "doc_id": f"typical/{number}_0_0",
                "content_hash": _hash(str(number)),
                "text": _filler(str(number), tokens),
            }
            for number in range(documents)
        ]
        chunks = pl.DataFrame(rows, schema={name: pl.String() for name in ("doc_id", "content_hash", "text")})
        pools = self.asked.select("question_id").join(chunks.select("doc_id"), how="cross")
        return _Pool(self.questions, pools, chunks.lazy(), TYPICAL)


def pool_growth(found_by: Sequence[Sequence[str]], variants: int, lacking: int) -> float:
    """By what factor a pool grows with `lacking` more query variants, from which of its `variants` found each document.

    The mean size of the union of k variants, over all choices of k, gives what the last one added and the one before;
    each further one adds less by the same ratio.
    """

    def union(k: int) -> float:
        ways = math.comb(variants, k)
        return sum(1 - math.comb(variants - len(set(own)), k) / ways for own in found_by)

    if variants < 2 or not found_by:
        return 1 + lacking / max(1, variants)
    last, before = union(variants) - union(variants - 1), union(variants - 1) - union(variants - 2)
    ratio = min(1.0, last / before) if before > 0 else 0.0
    return 1 + sum(last * ratio**step for step in range(1, lacking + 1)) / union(variants)


def same_after(months: int) -> float:
    """Share of chunk texts that are thought to be the same after some months, 1 for none."""
    if months == 0:
        return 1.0
    return SAME_AFTER_MONTH * (SAME_AFTER_YEAR / SAME_AFTER_MONTH) ** ((months - 1) / 11)


_STAND_IN = "stand-in"
_AS_FORETOLD = "foretold:"


def _frozen(role: ModelRole) -> ModelRole:
    """The role as one that only reads the cache."""
    return role if role.provider in ("heuristic", "replay") else role.model_copy(update={"cache": "only"})


def _asks(role: ModelRole) -> bool:
    return role.provider != "heuristic"


def _fused(pools: pl.DataFrame, depth: int) -> pl.DataFrame:
    """For each pooled document the variants whose fused top holds it."""
    entry = pl.element().struct
    fused = (entry.field("retriever") == "fusion") & (entry.field("rank") <= depth)
    of_fusion = pl.col("found_by").list.filter(fused).list.eval(entry.field("variant")).list.unique()
    return pools.select(variants=of_fusion).filter(pl.col("variants").list.len() > 0)


def _stand_in_nuggets(questions: pl.DataFrame, model: str) -> pl.DataFrame:
    """For each answer the heuristic's statements: about as many as a model's nuggets would be, and as long."""
    rows: list[dict[str, Any]] = []
    for row in questions.to_dicts():
        texts = salient_statements(question_text(row), row["answer_text"]) or [row["title"]]
        rows += [
            {
                "nugget_id": f"{row['question_id']}_{position}",
                "question_id": row["question_id"],
                "position": position,
                "text": text,
                "model": model,
                "prompt": _STAND_IN,
                "reply": None,
            }
            for position, text in enumerate(texts)
        ]
    return pl.DataFrame(rows, schema=TABLES["nuggets"].schema)


def _filler(seed: str, tokens: int) -> str:
    """A text of so many tokens, different for each seed."""
    return f"{seed}" + " word" * max(0, tokens - 1)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _scaled(found: Estimate, factor: float) -> Estimate:
    def price(value: float | None) -> float | None:
        return None if value is None else value * factor

    if factor == 1:
        return found
    return replace(
        found,
        requests=round(found.requests * factor),
        calls=round(found.calls * factor),
        input_tokens=round(found.input_tokens * factor),
        output_tokens=round(found.output_tokens * factor),
        dollars=price(found.dollars),
        batch_dollars=price(found.batch_dollars),
        most_dollars=price(found.most_dollars),
    )


def _months(one: str, other: str) -> int:
    """Months between two snapshots."""
    (year_a, month_a), (year_b, month_b) = (map(int, snapshot.split("-")) for snapshot in (one, other))
    return abs((year_a - year_b) * 12 + month_a - month_b)
