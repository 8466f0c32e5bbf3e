"""Where a table can be wrong: asset checks, blocking where going on would spend money or publish a falsehood.

Most are a question in SQL that must have an empty answer; `$topic` and `$snapshot` are the partition's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from freshstack_dagster.assets.tables import markdown_table
from freshstack_dagster.partitions import topic_and_snapshot, topic_partitions, topic_snapshot_partitions
from freshstack_dagster.resources import Project
from freshstack_dagster.tables import TABLES

SHOWN = 10
JUDGED = ("judgments", "annotations", "closed_book_judgments", "answer_judgments")
HERE = "topic = $topic and snapshot = $snapshot"


@dataclass(frozen=True)
class Rule:
    """A query over the tables that must return no row."""

    asset: str
    name: str
    description: str
    sql: str


RULES = [
    Rule(
        "questions",
        "questions_found",
        "The source holds at least one question of the topic with its accepted answer.",
        "select 'no question is kept; left out: ' || coalesce((select string_agg(reason || ' ' || posts, ', ' order by "
        "reason) from (select reason, count(*) as posts from question_ledger where topic = $topic group by reason)), "
        "'none') || '; whatever else the source holds bears none of the tags' as fault "
        "where not exists (select 1 from questions where topic = $topic)",
    ),
    Rule(
        "nuggets",
        "nuggets_of_questions",
        "Every nugget belongs to a question of the topic.",
        "select nugget_id, question_id from nuggets anti join questions using (topic, question_id) "
        "where topic = $topic",
    ),
    Rule(
        "nuggets",
        "nuggets_written",
        "Some question has nuggets; without any there is nothing to judge.",
        "select 'no question has a nugget; see nugget_outcomes: ' || coalesce((select string_agg(outcome || ' ' || n, "
        "', ' order by outcome) from (select outcome, count(*) as n from nugget_outcomes where topic = $topic "
        "group by outcome)), 'none asked') as fault where exists (select 1 from questions where topic = $topic) "
        "and not exists (select 1 from nuggets where topic = $topic)",
    ),
    Rule(
        "nuggets",
        "questions_with_nuggets",
        "At most one question in twenty failed to get nuggets; each failure has its reason in nugget_outcomes.",
        "select question_id, detail from nugget_outcomes where topic = $topic and outcome = 'error' and "
        "(select avg((outcome = 'error')::int) from nugget_outcomes where topic = $topic) > 0.05",
    ),
    Rule(
        "chunks",
        "corpus_not_empty",
        "Every repository of the snapshot has chunks.",
        f"select repository from (select * from commits where {HERE}) "
        f"anti join (select repository from chunks where {HERE}) using (repository)",
    ),
    Rule(
        "chunks",
        "doc_ids_unique",
        "No two chunks share an id.",
        f"select doc_id, count(*) as times from chunks where {HERE} group by doc_id having times > 1",
    ),
    Rule(
        "chunks",
        "chunks_in_order",
        "Chunks of a file neither overlap nor run backwards.",
        "select doc_id, start_byte, previous_end from (select doc_id, start_byte, lag(end_byte) over "
        f"(partition by repository, path order by start_byte) as previous_end from chunks where {HERE}) "
        "where start_byte < previous_end",
    ),
    Rule(
        "chunks",
        "corpus_not_halved",
        "No repository lost more than half of its chunks since the snapshot before.",
        "with counts as (select snapshot, repository, count(*) as chunks from chunks where topic = $topic "
        "group by all), before as (select max(snapshot) as snapshot from counts where snapshot < $snapshot) "
        "select old.repository, old.chunks as chunks_before, coalesce(new.chunks, 0) as chunks_now from counts old "
        "join before using (snapshot) left join (select * from counts where snapshot = $snapshot) new "
        "using (repository) where coalesce(new.chunks, 0) * 2 < old.chunks",
    ),
    Rule(
        "pools",
        "pooled_documents_exist",
        "Every pooled document is a chunk of the snapshot.",
        f"select question_id, doc_id from (select * from pools where {HERE}) "
        f"anti join (select doc_id from chunks where {HERE}) using (doc_id)",
    ),
    *(
        Rule(
            table,
            "judged_pairs_exist" if table == "judgments" else f"{table}_pairs_exist",
            "Every judged pair is a nugget of the topic and a pooled chunk of its question.",
            f"select nugget_id, doc_id from (select * from {table} where {HERE}) j where not exists (select 1 from "
            "nuggets n where n.topic = $topic and n.nugget_id = j.nugget_id) or not exists (select 1 from pools p "
            "where p.topic = $topic and p.snapshot = $snapshot and p.question_id = j.question_id and "
            "p.doc_id = j.doc_id)",
        )
        for table in ("judgments", "annotations")
    ),
    *(
        Rule(
            table,
            "verdicts_known" if table == "judgments" else f"{table}_verdicts_known",
            "Every verdict is supported, unsupported or error, and every error says why.",
            f"select nugget_id, doc_id, verdict from {table} where topic = $topic"
            + (" and snapshot = $snapshot" if "snapshot" in TABLES[table].by else "")
            + " and (verdict not in ('supported', 'unsupported', 'error') "
            "or (verdict = 'error' and trim(reason) = ''))",
        )
        for table in JUDGED
    ),
    Rule(
        "qrels",
        "qrels_in_corpus",
        "Every document of the qrels is a chunk of the snapshot.",
        f"select nugget_id, doc_id from (select * from qrels where {HERE}) "
        f"anti join (select doc_id from chunks where {HERE}) using (doc_id)",
    ),
    Rule(
        "qrels",
        "errors_are_not_relevance",
        "No pair has a relevance on which the judge gave only an error and no annotator a verdict.",
        f"select nugget_id, doc_id from (select * from qrels where {HERE}) semi join (select nugget_id, doc_id from "
        f"judgments where {HERE} and verdict = 'error') using (nugget_id, doc_id) anti join (select nugget_id, doc_id "
        f"from annotations where {HERE} and verdict != 'error') using (nugget_id, doc_id)",
    ),
    *(
        Rule(
            table,
            f"{table}_in_bounds",
            "Every score lies between its bounds, and both lie in 0 to 1.",
            f"select measure, question_id, lower, value, upper from {table} where {HERE} and not "
            "(lower between -1e-9 and value + 1e-9 and value <= upper + 1e-9 and upper <= 1 + 1e-9)",
        )
        for table in ("pooling_results", "retrieval_results")
    ),
]

# Worth a look, but no reason to stop: repositories do shrink, and a source may grow silent.
WARNINGS = {"corpus_not_halved", "questions_with_nuggets"}


def _check(rule: Rule) -> dg.AssetChecksDefinition:
    by_topic = TABLES[rule.asset].by == ("topic",)

    @dg.asset_check(
        asset=rule.asset,
        name=rule.name,
        description=rule.description,
        blocking=rule.name not in WARNINGS,
        partitions_def=topic_partitions if by_topic else topic_snapshot_partitions,
    )
    def check(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
        topic, snapshot = topic_and_snapshot(context)
        faults = project.lake.ask(rule.sql, topic=topic, snapshot=snapshot)
        return _result(faults, warn=rule.name in WARNINGS)

    return check


def _result(faults: pl.DataFrame, *, warn: bool = False, **metadata: Any) -> dg.AssetCheckResult:
    told = "no fault"
    if not faults.is_empty():
        row = faults.row(0, named=True)
        told = row["fault"] if list(row) == ["fault"] else ", ".join(f"{name} {value}" for name, value in row.items())
        told += f" and {faults.height - 1:,} more" if faults.height > 1 else ""
    return dg.AssetCheckResult(
        passed=faults.is_empty(),
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=told,
        metadata={
            "faults": faults.height,
            **({} if faults.is_empty() else {"first": dg.MetadataValue.md(markdown_table(faults.head(SHOWN)))}),
            **metadata,
        },
    )


def _chunk_check(
    name: str, description: str, find: Callable[[Project, str, str], pl.DataFrame]
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset="chunks",
        name=name,
        description=description,
        blocking=True,
        partitions_def=topic_snapshot_partitions,
    )
    def check(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
        topic, snapshot = topic_and_snapshot(context)
        assert snapshot is not None
        return _result(find(project, topic, snapshot))

    return check


def _texts_that_differ(project: Project, topic: str, snapshot: str) -> pl.DataFrame:
    from freshstack_dagster.corpus.verify import texts_that_differ

    lake = project.lake
    return texts_that_differ(
        project.topic(topic),
        lake.scan("files", topic, snapshot),
        lake.scan("chunks", topic, snapshot),
        project.places.mirrors,
    )


def _lost_languages(project: Project, topic: str, snapshot: str) -> pl.DataFrame:
    from freshstack_dagster.corpus.build import lost_languages

    return lost_languages(project.lake.read("files", topic, snapshot))


def _error_share_check(table: str) -> dg.AssetChecksDefinition:
    by_topic = TABLES[table].by == ("topic",)

    @dg.asset_check(
        asset=table,
        name="error_share" if table == "judgments" else f"{table}_error_share",
        description="Errors stay below the share that the topic allows; an error is unjudged, never a zero.",
        blocking=True,
        partitions_def=topic_partitions if by_topic else topic_snapshot_partitions,
    )
    def check(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
        return error_share_result(project, table, *topic_and_snapshot(context))

    return check


def error_share_result(project: Project, table: str, topic: str, snapshot: str | None) -> dg.AssetCheckResult:
    """Compare the share of error verdicts with the topic's limit; annotators stop the build only if they make qrels."""
    from freshstack_dagster.judging.support import error_share

    judging = project.topic(topic).judging
    limit = judging.max_error_share
    verdicts = project.lake.read(table, topic, snapshot)
    share = error_share(verdicts)
    reasons = verdicts.filter(pl.col("verdict") == "error").group_by("reason").len("pairs").top_k(SHOWN, by="pairs")
    aside = table == "annotations" and judging.verdict == "judge"
    return dg.AssetCheckResult(
        passed=share <= limit,
        severity=dg.AssetCheckSeverity.WARN if aside else dg.AssetCheckSeverity.ERROR,
        description=f"{share:.2%} of the pairs are errors; the limit is {limit:.0%}",
        metadata={
            "error share": share,
            **({} if reasons.is_empty() else {"reasons": dg.MetadataValue.md(markdown_table(reasons))}),
        },
    )


CHECKS = [
    *(_check(rule) for rule in RULES),
    _chunk_check(
        "offsets_give_back_the_text",
        "A sample of chunks equals the bytes of its file at the commit, decoded.",
        _texts_that_differ,
    ),
    _chunk_check(
        "no_language_lost",
        "No file extension that makes up more than 1% of a repository's text is without a chunk.",
        _lost_languages,
    ),
    *(_error_share_check(table) for table in JUDGED),
]
