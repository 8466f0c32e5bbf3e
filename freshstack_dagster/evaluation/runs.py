"""Runs and qrels as people hand them in: TREC text or Parquet, plain or gzipped, read strictly."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import polars as pl

from freshstack_dagster.errors import EvaluationError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RUN_LINE = rf"^\s*(\S+)\s+\S+\s+(\S+)\s+[+-]?\d+\s+({_NUMBER})\s+\S+\s*$"
_QRELS_LINE = r"^\s*(\S+)\s+(\S+)\s+(\S+)\s+([+-]?\d+)\s*$"
_RANK_AND_SCORE = re.compile(rf"(?<=\s)[+-]?\d+\s+({_NUMBER})(?=\s|$)")
_ENDINGS = (".gz", ".parquet", ".run", ".trec", ".txt")
_HEAD = re.compile(r"^\s*(\S+)\s+(\S+)\s+")


def read_run(path: Path | str) -> pl.DataFrame:
    """Read a run: a TREC run (`question Q0 document rank score tag`) or Parquet, to question_id, doc_id and score.

    As trec_eval does, ranks in a TREC run are not read: the score decides. Blank lines are skipped; document ids and
    tags may hold spaces where the rank and the score still tell them apart. Parquet has columns question_id, doc_id and
    score, or rank in place of score; a row without doc_id stands for an empty ranking. Rows keep the file's order.

    Raises EvaluationError that names the file and the line for what cannot be read or understood in one way only, and
    for a document that a question lists twice.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        run = _read_parquet(path)
        if "score" not in run.columns and "rank" in run.columns:
            run = run.with_columns(score=-pl.col("rank"))
        absent = [name for name in ("question_id", "doc_id", "score") if name not in run.columns]
        if absent:
            raise EvaluationError(f"{path}: missing columns {', '.join(absent)}; found {', '.join(run.columns)}")
        run = _cast(run, {"question_id": pl.String(), "doc_id": pl.String(), "score": pl.Float64()}, path)
        return _refuse_repeated(run, path, None)
    lines = _lines(path)
    fields = ("question_id", "doc_id", "score")
    run = _parse(lines, _RUN_LINE, fields, _run_line, path).with_columns(
        pl.col("score").cast(pl.Float64()), pl.col("line").cast(pl.Int64())
    )
    if not run.height:
        raise EvaluationError(f"{path}: the run holds no line")
    endless = run.filter(~pl.col("score").is_finite())
    if endless.height:
        raise EvaluationError(f"{path}, line {endless['line'][0]}: the score is not a finite number")
    return _refuse_repeated(run, path, "line").select(fields)


def read_qrels(path: Path | str) -> pl.DataFrame:
    """Read nugget qrels: four columns (`question nugget document relevance`) or Parquet, to a frame of these names.

    In Parquet without question_id, the question is what stands before the last underscore of nugget_id. Plain TREC
    qrels are read alike: their second column, `0` or `Q0`, is then the one nugget of a question. Raises EvaluationError
    that names the file and the line.
    """
    path = Path(path)
    types: dict[str, pl.DataType] = {
        "question_id": pl.String(),
        "nugget_id": pl.String(),
        "doc_id": pl.String(),
        "relevance": pl.Int64(),
    }
    if path.suffix == ".parquet":
        return _cast(with_questions(_read_parquet(path)), types, path)
    qrels = _parse(_lines(path), _QRELS_LINE, tuple(types), _qrels_line, path)
    return _cast(qrels, types, path)


def with_questions(qrels: pl.DataFrame) -> pl.DataFrame:
    """Add question_id where qrels lack it: what stands before the last underscore of nugget_id (`so_12_0`: `so_12`).

    Raises EvaluationError that names a nugget_id which does not end in `_` and a number.
    """
    if "question_id" in qrels.columns or "nugget_id" not in qrels.columns:
        return qrels
    qrels = qrels.with_columns(question_id=pl.col("nugget_id").cast(pl.String()).str.extract(r"^(.+)_\d+$"))
    wrong = qrels.filter(pl.col("question_id").is_null())
    if wrong.height:
        raise EvaluationError(
            f"qrels: nugget {wrong['nugget_id'][0]!r} does not name its question (expected such as 1234_0)"
        )
    return qrels


def read_submitted(
    folder: Path, chunks: pl.LazyFrame | pl.DataFrame, outcomes: pl.DataFrame
) -> dict[str, pl.DataFrame]:
    """Read and check every run of a folder, by name (the file's without its endings), sorted.

    `chunks` needs doc_id, `outcomes` the question_id of every question of the snapshot. Hidden files are left alone.
    A folder that is not there holds no runs. Raises EvaluationError that names the file: one that is no run, ranks what
    the snapshot does not have, or bears the name of another.
    """
    files = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        return {}
    documents = chunks.lazy().select("doc_id").collect()["doc_id"]
    runs: dict[str, pl.DataFrame] = {}
    for path in files:
        name = path.name
        while (ending := Path(name).suffix) in _ENDINGS:
            name = name.removesuffix(ending)
        if name == path.name:
            raise EvaluationError(f"{path}: not known as a run; its name should end in one of {', '.join(_ENDINGS)}")
        if name in runs:
            raise EvaluationError(f"{path}: another run is called {name} too; rename one")
        runs[name] = read_checked(path, documents, outcomes["question_id"])
    return runs


def read_checked(
    path: Path, doc_ids: Collection[str] | pl.Series, question_ids: Collection[str] | pl.Series
) -> pl.DataFrame:
    """Read a run as `read_run` does and refuse it as `check_run` does; the error names the file.

    An unknown id that is known once it is read by `trec_read` is that one: so the `trec` export writes them.
    """
    run = read_run(path)
    for column, known in (("doc_id", doc_ids), ("question_id", question_ids)):
        written = {name: trec_read(name) for name in _unknown(run[column], known)}
        run = run.with_columns(pl.col(column).replace(written)) if written else run
    try:
        return check_run(run, doc_ids, question_ids)
    except EvaluationError as error:
        raise EvaluationError(f"{path}: {error}") from error


def trec_word(text: object) -> str:
    """An id as one word of a TREC file, which has no quotes: white space and the percent sign as %20, %25 and so on."""
    return re.sub(r"[\s%]", lambda found: quote(found[0]), str(text))


def trec_read(word: str) -> str:
    """The id that `trec_word` wrote."""
    return unquote(word)


def check_run(
    run: pl.DataFrame, doc_ids: Collection[str] | pl.Series, question_ids: Collection[str] | pl.Series
) -> pl.DataFrame:
    """Return the run as it is, or refuse it because it ranks what the snapshot does not have.

    `doc_ids` are those of the snapshot's chunks, `question_ids` those of its questions. Raises EvaluationError with the
    unknown ids.
    """
    for column, known, what in (("doc_id", doc_ids, "chunks"), ("question_id", question_ids, "questions")):
        unknown = _unknown(run[column], known)
        if unknown:
            raise EvaluationError(f"the run has {len(unknown)} {column}s that {what} lack: {_some(unknown)}")
    return run


def check_qrels(qrels: pl.DataFrame, doc_ids: Collection[str] | pl.Series) -> None:
    """Refuse qrels with a document that the corpus does not have. Raises EvaluationError with the ids."""
    unknown = _unknown(qrels["doc_id"], doc_ids)
    if unknown:
        raise EvaluationError(f"qrels have {len(unknown)} doc_ids that chunks lack: {_some(unknown)}")


def _unknown(values: pl.Series, known: Collection[str] | pl.Series) -> list[str]:
    known_frame = pl.DataFrame({"id": pl.Series("id", known if isinstance(known, pl.Series) else list(known))})
    frame = pl.DataFrame({"id": values.drop_nulls().unique()})
    missing = frame.join(known_frame.cast(pl.String()), on="id", how="anti")
    return missing["id"].sort().to_list()


def _some(names: list[str], shown: int = 10) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, hive_partitioning=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise EvaluationError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _cast(frame: pl.DataFrame, types: dict[str, pl.DataType], path: Path) -> pl.DataFrame:
    absent = [name for name in types if name not in frame.columns]
    if absent:
        raise EvaluationError(f"{path}: missing columns {', '.join(absent)}; found {', '.join(frame.columns)}")
    try:
        return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items())
    except pl.exceptions.PolarsError as error:
        raise EvaluationError(f"{path}: a column does not fit its type: {str(error).splitlines()[0]}") from error


def _lines(path: Path) -> pl.Series:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError) as error:
        raise EvaluationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise EvaluationError(f"{path}, line {line}: not UTF-8 text") from error
    # Not splitlines(): an id may hold a character that Unicode counts as a line's end.
    return pl.Series("text", [text.replace("\r\n", "\n")]).str.split("\n").explode()


def _parse(
    lines: pl.Series,
    pattern: str,
    fields: tuple[str, ...],
    slow: Callable[[str], tuple[str, ...] | str | None],
    path: Path,
) -> pl.DataFrame:
    """Lines to columns: the plain form by one pattern over the column, the rest line by line through `slow`.

    `slow` returns the fields, what is wrong with the line, or None for a line to skip.
    """
    groups = lines.str.extract_groups(pattern).struct.unnest()
    groups.columns = list(fields)
    frame = groups.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64()))
    plain = frame.filter(pl.col(fields[0]).is_not_null())
    rest = frame.select("line", lines).filter(frame[fields[0]].is_null())
    more = list(_slow_rows(rest, slow, path))
    if not more:
        return plain
    schema = {name: pl.String() for name in fields} | {"line": pl.Int64()}
    return pl.concat([plain, pl.DataFrame(more, schema=schema, orient="row")]).sort("line")


def _slow_rows(
    rest: pl.DataFrame, slow: Callable[[str], tuple[str, ...] | str | None], path: Path
) -> Iterator[tuple[Any, ...]]:
    for number, line in rest.iter_rows():
        row = slow(line)
        if isinstance(row, str):
            raise EvaluationError(f"{path}, line {number}: {row}")
        if row is not None:
            yield (*row, number)


def _run_line(line: str) -> tuple[str, ...] | str | None:
    """Read a line whose document id or tag holds spaces: the rank and the score stand between them."""
    if not line.strip():
        return None
    head = _HEAD.match(line)
    if head is None:
        return "expected `question Q0 document rank score tag`"
    # Overlapping places count: `a 1 2 3 tag` can be read as document `a` or `a 1`.
    places = []
    at = head.end()
    while found := _RANK_AND_SCORE.search(line, at):
        if line[head.end() : found.start()].strip():
            places.append(found)
        at = found.start() + 1
    complete = [place for place in places if line[place.end() :].strip()]
    if not complete:
        return "expected `question Q0 document rank score tag`" + (
            ", the tag is missing" if places else ", found no rank and score"
        )
    if len(complete) > 1:
        return "spaces make it unclear which numbers are the rank and the score; separate the fields by one space each"
    if not math.isfinite(float(complete[0][1])):
        return "the score is not a finite number"
    return head[1], line[head.end() : complete[0].start()].strip(), complete[0][1]


def _qrels_line(line: str) -> tuple[str, ...] | str | None:
    """Read a line whose document id holds spaces."""
    if not line.strip():
        return None
    head = _HEAD.match(line)
    tail = re.search(r"\s([+-]?\d+)\s*$", line)
    if head is None or tail is None or tail.start() < head.end() or not line[head.end() : tail.start()].strip():
        return "expected `question nugget document relevance`, the relevance a whole number"
    return head[1], head[2], line[head.end() : tail.start()].strip(), tail[1]


def _refuse_repeated(run: pl.DataFrame, path: Path, line: str | None) -> pl.DataFrame:
    repeated = run.filter(pl.struct("question_id", "doc_id").is_duplicated() & pl.col("doc_id").is_not_null())
    if repeated.height:
        question, document = repeated.select("question_id", "doc_id").row(0)
        where = ""
        if line is not None:
            same = repeated.filter((pl.col("question_id") == question) & (pl.col("doc_id") == document))
            where = f", line {same[line][1]}"
        raise EvaluationError(f"{path}{where}: question {question} lists document {document} twice")
    return run
