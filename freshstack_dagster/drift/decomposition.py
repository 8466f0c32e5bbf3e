"""How much of a change comes from the corpus, the judge, the pool and the chunker: one varied, the others held.

The reference is the baseline snapshot as it was built. Each condition is scored as the benchmark is, from judgments to
qrels to `retrieval_results`, and compared with the reference on the questions that both kept. A question that a
condition drops is an effect too, so the numbers kept stand beside the scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from freshstack_dagster.drift.correlation import measures_of, shared_scores, tau_with_interval
from freshstack_dagster.evaluation.qrels import build_qrels
from freshstack_dagster.evaluation.results import retrieval_results
from freshstack_dagster.retrieval.fuse import base_runs
from freshstack_dagster.retrieval.pools import build_pools
from freshstack_dagster.settings import SETTING_OF_VARIANT, Pooling, Topic
from freshstack_dagster.tables import TABLES

if TYPE_CHECKING:
    from freshstack_dagster.language_models.client import Models

# How much higher or lower the heuristic's threshold is set for a second judge.
THRESHOLD_SHIFT = 0.1
# Cutting, indexing and judging a larger corpus again costs more than its answer is worth by default.
MOST_CHUNKS = 20_000
LEAST_TOKENS = 64
_PAIR = ["nugget_id", "doc_id"]


@dataclass(frozen=True)
class Condition:
    """What scores rest on: rankings and verdicts. `runs` and `judgments` are tables of those names."""

    runs: pl.DataFrame
    judgments: pl.DataFrame


@dataclass(frozen=True)
class Collection:
    """The questions and nuggets that conditions are scored on, as tables; `keep_partial` as in `build_qrels`."""

    questions: pl.DataFrame
    nuggets: pl.DataFrame
    keep_partial: bool = False

    def results(self, condition: Condition) -> pl.DataFrame:
        """The condition's table `retrieval_results`."""
        qrels, _ = build_qrels(condition.judgments, self.nuggets, self.questions, keep_partial=self.keep_partial)
        return retrieval_results(condition.runs, qrels, condition.judgments)


def compare(
    factor: str, variation: str, before: pl.DataFrame, after: pl.DataFrame, *, detail: str = "", seed: int = 13
) -> pl.DataFrame:
    """The effect of a variation on scores and rankings, by measure, as rows of `decomposition`.

    `before` and `after` are tables `retrieval_results` of the two conditions.
    """
    rows = []
    kept = [frame.filter(pl.col("question_id") != "all")["question_id"].n_unique() for frame in (before, after)]
    for measure in measures_of(before):
        both = shared_scores(before, after, measure)
        if both is None:
            continue
        means = both.before.mean(axis=1), both.after.mean(axis=1)
        changes = means[1] - means[0]
        rows.append(
            {
                "factor": factor,
                "variation": variation,
                "measure": measure,
                "outcome": "measured",
                "detail": detail,
                "systems": len(both.systems),
                "questions": len(both.questions),
                "questions_before": kept[0],
                "questions_after": kept[1],
                "score_before": means[0].mean(),
                "score_after": means[1].mean(),
                "difference": changes.mean(),
                "largest_difference": changes[abs(changes).argmax()],
                **tau_with_interval(both, seed=seed),
                "judge_kind": both.judge_kind,
            }
        )
    if not rows:
        return skipped(factor, variation, "no system and question was scored in both conditions")
    return TABLES["decomposition"].conform(pl.DataFrame(rows, schema=TABLES["decomposition"].schema))


def skipped(factor: str, variation: str, why: str, judge_kind: str = "none") -> pl.DataFrame:
    """The row of a variation that was not measured, with the reason."""
    row = {"factor": factor, "variation": variation, "measure": "all", "outcome": "skipped", "detail": why}
    frame = pl.DataFrame([{**row, "judge_kind": judge_kind}])
    empty = [pl.lit(None, dtype).alias(name) for name, dtype in TABLES["decomposition"].schema.items()]
    return TABLES["decomposition"].conform(
        frame.with_columns(column for column in empty if column.meta.output_name() not in frame.columns)
    )


def vary_corpus(
    collection: Collection, months: Mapping[str, Condition], baseline: str, asked: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """The corpus of every other month with the judge, the way of pooling and the chunker of the baseline.

    `months` holds each month as it was built, the baseline too; `asked` the questions of each month. A month that
    another judge or another prompt judged is skipped: its change would be two in one.
    """
    reference = months[baseline]
    before = collection.results(reference)
    judged_by = _judge(reference.judgments)
    parts = [TABLES["decomposition"].empty()]
    for month in sorted(set(months) - {baseline}):
        variation, judge = f"{baseline} to {month}", _judge(months[month].judgments)
        if judge != judged_by:
            why = f"judged by {judge}, the baseline by {judged_by}; judge both by one to separate corpus from judge"
            parts.append(skipped("corpus", variation, why))
            continue
        after = replace(collection, questions=asked[month]).results(months[month])
        parts.append(compare("corpus", variation, before, after))
    if len(parts) == 1:
        parts.append(skipped("corpus", f"{baseline} to a later month", "no other snapshot is built yet"))
    return pl.concat(parts)


def _judge(judgments: pl.DataFrame) -> str:
    judges = judgments.select(pl.format("{} ({})", "judge", "prompt")).to_series().unique().sort()
    return ", ".join(judges)


def submitted_runs(pools: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The submitted runs that topped a pool up, down to its depth, as `build_pools` takes them.

    `pools` and `runs` are the tables: what found a candidate and is no retriever of the runs was submitted.
    """
    found = pools.select("question_id", "doc_id", "found_by").explode("found_by").unnest("found_by")
    own = runs["retriever"].unique().implode()
    return found.filter(~pl.col("retriever").is_in(own)).with_columns(score=-pl.col("rank").cast(pl.Float64()))


def vary_pool(
    collection: Collection, reference: Condition, pooling: Pooling, submitted: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Smaller pools: half as deep, without the variants that know the answer, without one retriever.

    `submitted` are the runs that topped the pool up, as of `submitted_runs`; they stay in the smaller ones. Verdicts on
    what the smaller pool leaves out are forgotten; the runs stay, so that what nobody judges then is a hole.
    """
    before = collection.results(reference)
    parts = [TABLES["decomposition"].empty()]
    for variation, pools in _smaller_pools(reference.runs, pooling, submitted):
        known = reference.judgments.join(
            pools.select("question_id", "doc_id"), on=["question_id", "doc_id"], how="semi"
        )
        share = known.height / max(1, reference.judgments.height)
        after = collection.results(Condition(reference.runs, known))
        parts.append(compare("pool", variation, before, after, detail=f"{share:.0%} of the verdicts remain"))
    return pl.concat(parts)


def _smaller_pools(
    runs: pl.DataFrame, pooling: Pooling, submitted: pl.DataFrame | None
) -> Iterator[tuple[str, pl.DataFrame]]:
    runs = base_runs(runs)
    if pooling.depth > 1:
        half = pooling.depth // 2
        yield (
            f"depth {pooling.depth} to {half}",
            build_pools(runs, pooling.model_copy(update={"depth": half}), submitted),
        )
    inference = tuple(name for name in pooling.variants if SETTING_OF_VARIANT[name] == "inference")
    if inference and len(inference) < len(pooling.variants):
        smaller = pooling.model_copy(update={"variants": inference})
        yield "all variants to those that do not know the answer", build_pools(runs, smaller, submitted)
    retrievers = sorted(runs["retriever"].unique())
    found_by = build_pools(runs, pooling).explode("found_by")["found_by"].struct.field("retriever").unique()
    for name in retrievers if len(retrievers) > 1 else ():
        if name in set(found_by):
            rest = runs.filter(pl.col("retriever") != name)
            yield f"all retrievers to all but {name}", build_pools(rest, pooling, submitted)


def vary_judge(
    collection: Collection, reference: Condition, annotations: pl.DataFrame, texts: Mapping[str, str]
) -> pl.DataFrame:
    """Another judge of the same pairs: each annotator, and for the heuristic a higher and a lower threshold.

    `annotations` is the table of that name; `texts` holds the pooled texts by content hash. Annotators that judged a
    part of the pool are compared with the judge on that part alone.
    """
    judgments = reference.judgments
    parts = [TABLES["decomposition"].empty()]
    for name, verdicts in sorted(annotations.group_by("judge"), key=lambda item: str(item[0])):
        common = judgments.join(verdicts, on=_PAIR, how="semi")
        before = collection.results(Condition(reference.runs, common))
        after = collection.results(Condition(reference.runs, verdicts.join(common, on=_PAIR, how="semi")))
        share = common.height / max(1, judgments.height)
        variation = f"{_judges(judgments)} to {name[0]}"
        parts.append(compare("judge", variation, before, after, detail=f"on {share:.0%} of the pairs, judged by both"))
    if set(judgments["judge_kind"].unique()) == {"heuristic"}:
        before = collection.results(reference)
        for shift in (THRESHOLD_SHIFT, -THRESHOLD_SHIFT):
            after = collection.results(
                Condition(reference.runs, judge_by_threshold(judgments, collection.nuggets, texts, shift))
            )
            variation = f"heuristic to a threshold {'higher' if shift > 0 else 'lower'} by {abs(shift)}"
            parts.append(compare("judge", variation, before, after))
    elif len(parts) == 1:
        parts.append(
            skipped("judge", f"{_judges(judgments)} to another", "no annotator judged; name one in roles.annotators")
        )
    return pl.concat(parts)


def _judges(judgments: pl.DataFrame) -> str:
    return ", ".join(judgments["judge"].unique().sort())


def judge_by_threshold(
    judgments: pl.DataFrame, nuggets: pl.DataFrame, texts: Mapping[str, str], shift: float
) -> pl.DataFrame:
    """The heuristic's verdicts on the same pairs at a threshold moved by `shift`; errors stay errors."""
    from freshstack_dagster.judging import terms

    facts = dict(nuggets.select("nugget_id", "text").iter_rows())
    pairs = judgments.select("nugget_id", "content_hash").unique()
    wanted: dict[str, list[str]] = {}
    for nugget_id, content_hash in pairs.iter_rows():
        wanted.setdefault(content_hash, []).append(facts[nugget_id])
    # Terms are weighed by how common they are among the texts that were judged.
    pooled = terms.PooledTexts({content_hash: texts[content_hash] for content_hash in wanted}, wanted)

    def supported(nugget_id: str, content_hash: str) -> bool:
        match = pooled.match(facts[nugget_id], content_hash)
        return match.telling and match.score >= terms.THRESHOLD + shift

    found = [(*pair, "supported" if supported(*pair) else "unsupported") for pair in pairs.iter_rows()]
    schema = {"nugget_id": pl.String(), "content_hash": pl.String(), "moved": pl.String()}
    moved = pl.DataFrame(found, schema=schema, orient="row")
    verdict = pl.when(pl.col("verdict") == "error").then("verdict").otherwise("moved").alias("verdict")
    return judgments.join(moved, on=["nugget_id", "content_hash"]).with_columns(verdict).drop("moved")


def vary_chunker(
    collection: Collection,
    reference: Condition,
    topic: Topic,
    commits: pl.DataFrame,
    query_variants: pl.DataFrame,
    *,
    chunks: int,
    mirrors: Path,
    cache: Path,
    models: Models,
) -> pl.DataFrame:
    """Chunks of half and of a quarter of the tokens: cut, retrieved, pooled and judged anew.

    Only where judging is free (the heuristic) and the corpus, of `chunks` chunks, is not too large; else skipped.
    """
    sizes = [topic.max_tokens // part for part in (2, 4) if topic.max_tokens // part >= LEAST_TOKENS]
    named = {size: f"{topic.max_tokens} to {size} tokens a chunk" for size in sizes}
    why = _why_not_cut_again(topic, chunks)
    if why or not sizes:
        variation = "to smaller chunks" if not sizes else named[sizes[0]]
        return skipped("chunker", variation, why or f"chunks of {topic.max_tokens} tokens cannot be smaller")
    before = collection.results(reference)
    parts = []
    for size in sizes:
        cut, condition = _cut_again(collection, topic, commits, query_variants, size, mirrors, cache, models)
        after = collection.results(condition)
        parts.append(compare("chunker", named[size], before, after, detail=f"{chunks:,} chunks before, {cut:,} after"))
    return pl.concat(parts)


def _why_not_cut_again(topic: Topic, chunks: int) -> str:
    if topic.roles.judge.provider != "heuristic":
        return f"new chunks would have to be judged anew by {topic.roles.judge.model}, which costs money"
    if chunks > MOST_CHUNKS:
        return f"the corpus has {chunks:,} chunks; more than {MOST_CHUNKS:,} are not cut and judged again"
    return ""


def _cut_again(
    collection: Collection,
    topic: Topic,
    commits: pl.DataFrame,
    query_variants: pl.DataFrame,
    max_tokens: int,
    mirrors: Path,
    cache: Path,
    models: Models,
) -> tuple[int, Condition]:
    """The number of chunks of at most `max_tokens`, and the condition that retrieval and judging give on them."""
    from freshstack_dagster.corpus.build import build_corpus
    from freshstack_dagster.judging.support import judge_support
    from freshstack_dagster.retrieval.retrieve import retrieve

    smaller = topic.model_copy(update={"max_tokens": max_tokens})
    columns = ["doc_id", "path", "content_hash", "tokens", "text"]
    chunks = build_corpus(smaller, commits, mirrors, cache).chunks.select(columns)
    asked = query_variants.join(collection.questions, on="question_id", how="semi")
    runs = retrieve(asked, chunks, smaller, cache=cache)
    pools = build_pools(runs, topic.pooling)
    judgments = judge_support(
        collection.questions, collection.nuggets, pools, chunks, models, topic.roles.judge, topic.judging
    )
    return chunks.height, Condition(runs, judgments)


def summary(decomposition: pl.DataFrame, measure: str) -> list[dict[str, Any]]:
    """For a measure the strongest variation of each factor: by the size of its change of scores."""
    measured = decomposition.filter((pl.col("measure") == measure) & (pl.col("outcome") == "measured"))
    strongest = measured.sort(pl.col("difference").abs(), descending=True).unique("factor", keep="first")
    columns = ["factor", "variation", "questions", "difference", "largest_difference", "tau_b"]
    return strongest.sort("factor").select(columns).to_dicts()
