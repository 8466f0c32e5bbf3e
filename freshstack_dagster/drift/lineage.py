"""What became of each chunk of the baseline in a later snapshot.

Five passes, each over what the ones before left open:

1. **Equal text**. At the same place it is `unchanged`; so is one of several chunks of a file whose text still stands
   there whole, though the borders of the chunks moved. At a place that is new it is `moved` (another folder), `renamed`
   (another file name) or `migrated` (another repository).
2. **Shared passages** (winnowed fingerprints, weighted by rarity). The chunks that are new in the later snapshot and
   that together hold most of the old chunk's passages are its successors.
3. **A copy**: the same text, that stood elsewhere before and still does. Two copies became one: `merged`.
4. **Common passages**, those in many files too, but in its own file alone.
5. **Shared symbols**: a class or function that is defined in no other chunk of the baseline, and now in a new one.

What none of them finds is `gone`. Where a folder moved, a vanished file's heir is the later file of its name to which
its neighbours' way leads. Among places that fit about equally well the heir wins, or the nearer. A later chunk that was
there before with the same text is nobody's successor by its passages, and a passage that stood before in a file (or in
the one it is heir of), or anywhere in another repository, did not come there from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from freshstack_dagster.drift.fingerprints import fingerprints
from freshstack_dagster.tables import TABLES

Progress = Callable[[str, int, int], None]

# Shares of the old chunk's weight. With less than FOUND of its passages left an old chunk has no successor; elsewhere
# than in its own file or its heir more is asked, because texts of a kind are alike without descending from each other.
# A successor adds at least ADDS.
FOUND = 0.20
FOUND_ELSEWHERE = 0.50
ADDS = 0.20
ADDS_ELSEWHERE = 0.25
# Elsewhere than in its own file, fewer shared passages than this, or an equal text of fewer characters under another
# name, are an accident of short texts.
LEAST_PASSAGES = 5
LEAST_CHARACTERS = 100
MOST_SUCCESSORS = 4
# A passage in more chunks than this is boilerplate, and tells nothing about where a chunk went.
MOST_CHUNKS_OF_A_PASSAGE = 40
# At about equal passages the nearer place wins.
NEARNESS = {"same_file": 0.15, "same_repository": 0.03, "same_name": 0.07}
# A new file of which one old file makes up at least this is that file, and whatever else it took in merged into it.
MAIN_SOURCE = 2 / 3
_DEFINES = (
    r"(?m)^\s*(?:export\s+|default\s+|public\s+|private\s+|protected\s+|internal\s+|static\s+|abstract\s+|final\s+|"
    r"async\s+|pub\s+|sealed\s+)*"
)
TYPE = _DEFINES + r"(?:class|interface|trait|struct|enum|type|protocol)\s+([A-Z][\w$]{5,})"
FUNCTION = _DEFINES + r"(?:def|fn|func|function)\s+([A-Za-z_$][\w$]{5,})"
# A type keeps its name alone; functions, whose names are commoner, have to keep company.
LEAST_SYMBOLS_SHARED = 0.5
LEAST_FUNCTIONS = 3
_DEEPEST = 16
MOST_WAYS = 500
_PLACE = ["repository", "path"]
_HEIR = [*_PLACE, "repository_now", "path_now"]


@dataclass(frozen=True)
class Corpora:
    """Baseline and later chunks, numbered, with the folder, file name and what is new in the later one."""

    old: pl.DataFrame
    new: pl.DataFrame


def trace_lineage(
    baseline: pl.DataFrame,
    later: Mapping[str, pl.LazyFrame | pl.DataFrame],
    judgments: pl.DataFrame,
    *,
    progress: Progress = lambda what, done, total: None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Follow every chunk of the baseline into each later snapshot.

    In: chunks (`doc_id`, `repository`, `path`, `start_byte`, `content_hash`, `text`) of the baseline and of the later
    snapshots by month; the baseline's table `judgments`. Out: the tables `chunk_lineage` (supporting chunks only) and
    `lineage_summary` (all chunks, counted).
    """
    supports = (
        judgments.filter(pl.col("verdict") == "supported")
        .group_by("doc_id")
        .agg(supports=pl.col("nugget_id").n_unique())
    )
    lineages, summaries = [TABLES["chunk_lineage"].empty()], [TABLES["lineage_summary"].empty()]
    for done, (snapshot, chunks) in enumerate(sorted(later.items())):
        progress(f"lineage into {snapshot}", done, len(later))
        outcomes = follow(baseline, chunks.lazy().collect()).with_columns(snapshot=pl.lit(snapshot))
        lineages.append(outcomes.join(supports, on="doc_id", how="inner").pipe(TABLES["chunk_lineage"].conform))
        counts = outcomes.group_by("snapshot", "repository", "outcome").agg(chunks=pl.len().cast(pl.Int64))
        share = pl.col("chunks") / pl.col("chunks").sum().over("repository")
        summaries.append(counts.with_columns(share=share).pipe(TABLES["lineage_summary"].conform))
    return (
        TABLES["chunk_lineage"].conform(pl.concat(lineages)),
        TABLES["lineage_summary"].conform(pl.concat(summaries)),
    )


def follow(baseline: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """The outcome of each chunk of `baseline` in `later`.

    Out: `doc_id`, `repository`, `outcome`, `successors` (doc_ids, best first), `score` (share of the old chunk's
    weight that its first successor holds, 0 to 1; null if gone) and `evidence`, a row for each chunk of `baseline`.
    """
    corpora = _number(baseline, later)
    kept = _kept_texts(corpora)
    heirs = _heirs(corpora, kept)
    equal = _equal_text(corpora, heirs)
    open_ = corpora.old.join(equal, on="old", how="anti")
    candidates = _new_content(corpora)
    shared = _shared_passages(open_, candidates, corpora.old, heirs)
    placed = _name(shared, corpora, heirs)
    # Files that were followed by their passages show more ways than those that kept a text.
    heirs = _heirs(corpora, pl.concat([kept, _followed(shared, corpora)]))
    open_ = open_.join(placed, on="old", how="anti")
    copies = _copies(open_, corpora, heirs)
    open_ = open_.join(copies, on="old", how="anti")
    at_home = _name(_common_passages(open_, candidates, heirs), corpora, heirs)
    open_ = open_.join(at_home, on="old", how="anti")
    by_symbol = _name(_shared_symbols(open_, corpora, candidates, heirs), corpora, heirs)
    gone = open_.join(by_symbol, on="old", how="anti").select(
        "old",
        outcome=pl.lit("gone"),
        successors=pl.lit([], dtype=pl.List(pl.String())),
        score=pl.lit(None, dtype=pl.Float64()),
        evidence=pl.lit("no later chunk holds enough of its passages or any of its symbols"),
    )
    found = pl.concat([equal, placed, copies, at_home, by_symbol, gone])
    return corpora.old.select("old", "doc_id", "repository").join(found, on="old", validate="1:1").drop("old")


def _number(baseline: pl.DataFrame, later: pl.DataFrame) -> Corpora:
    def prepare(frame: pl.DataFrame, number: str) -> pl.DataFrame:
        name = pl.col("path").str.split("/").list.last().alias("name")
        ordered = frame.sort("repository", "path", "start_byte").with_row_index(number)
        return ordered.select(number, "doc_id", *_PLACE, name, "content_hash", "text")

    return Corpora(prepare(baseline, "old"), prepare(later, "new"))


def _equal_text(corpora: Corpora, heirs: pl.DataFrame) -> pl.DataFrame:
    """Outcomes of chunks whose exact text stands in the later snapshot, at their place or at a new one."""
    old = corpora.old.select("old", *_PLACE, "name", "content_hash", size=pl.col("text").str.len_chars())
    new = corpora.new.select("new", "doc_id", *_PLACE, "name", "content_hash")
    here = old.join(new, on=[*_PLACE, "content_hash"], how="inner")
    in_place = here.group_by("old").agg(successors=pl.col("doc_id").sort())
    under_other_borders = _whole_in_its_file(corpora.old.join(in_place, on="old", how="anti"), corpora)
    unchanged = pl.concat([in_place, under_other_borders])
    pairs = old.join(unchanged, on="old", how="anti").join(new, on="content_hash", how="inner", suffix="_now")
    was_there = old.select(*_PLACE, "content_hash").unique().rename({name: f"{name}_now" for name in _PLACE})
    arrived = pairs.join(was_there, on=["repository_now", "path_now", "content_hash"], how="anti")
    lone_namesake = (pl.col("name") == pl.col("name_now")) & (pl.len().over("old") == 1)
    arrived = _near(arrived, heirs).filter((pl.col("size") >= LEAST_CHARACTERS) | pl.col("same_file") | lone_namesake)
    moved = _at_the_nearest(arrived).select(
        "old",
        pl.when(pl.col("repository") != pl.col("repository_now"))
        .then(pl.lit("migrated"))
        .when(pl.col("name") == pl.col("name_now"))
        .then(pl.lit("moved"))
        .otherwise(pl.lit("renamed"))
        .alias("outcome"),
        "successors",
        evidence=pl.lit("the same text"),
    )
    whole = pl.lit("its text stands whole in its file, under other borders")
    same = unchanged.select(
        "old",
        outcome=pl.lit("unchanged"),
        successors="successors",
        evidence=pl.when(pl.col("old").is_in(in_place["old"].implode())).then(pl.lit("the same text")).otherwise(whole),
    )
    return pl.concat([same, moved]).select("old", "outcome", "successors", score=pl.lit(1.0), evidence="evidence")


def _copies(open_: pl.DataFrame, corpora: Corpora, heirs: pl.DataFrame) -> pl.DataFrame:
    """Outcomes of chunks whose exact text stands only where it stood before as well."""
    pairs = open_.select("old", *_PLACE, "name", "content_hash", "text").join(
        corpora.new.select("new", "doc_id", *_PLACE, "name", "content_hash"), on="content_hash", suffix="_now"
    )
    return _at_the_nearest(_near(pairs.filter(pl.col("text").str.len_chars() >= LEAST_CHARACTERS), heirs)).select(
        "old",
        outcome=pl.lit("merged"),
        successors="successors",
        score=pl.lit(1.0),
        evidence=pl.lit("its copy elsewhere, which was there before, is the only one left"),
    )


def _kept_texts(corpora: Corpora) -> pl.DataFrame:
    """Pairs of places (`repository`, `path` and both `_now`) of texts that stand once in each snapshot."""
    columns = [*_PLACE, "name", "content_hash"]
    telling = pl.col("content_hash").is_unique() & (pl.col("text").str.len_chars() >= LEAST_CHARACTERS)
    old, new = (frame.filter(telling).select(columns) for frame in (corpora.old, corpora.new))
    return old.join(new, on=["content_hash", "name"], suffix="_now").select(_HEIR)


def _followed(shared: pl.DataFrame, corpora: Corpora) -> pl.DataFrame:
    """Pairs of places of files of one name, of which one took most of a chunk of the other."""
    best = shared.filter((pl.col("place") == 0) & (pl.col("gain") >= FOUND_ELSEWHERE)).select("old", "new")
    places = best.join(corpora.old.select("old", *_PLACE, "name"), on="old").join(
        corpora.new.select("new", *_PLACE, "name"), on="new", suffix="_now"
    )
    return places.filter(pl.col("name") == pl.col("name_now")).select(_HEIR)


def _heirs(corpora: Corpora, pairs: pl.DataFrame) -> pl.DataFrame:
    """What vanished files are called now, as far as the ways of their neighbours tell.

    Each of `pairs` shows a way: `libs/core/a.py` that is now `packages/core/a.py` went from `libs` to `packages`. Out:
    `repository`, `path`, `repository_now`, `path_now`, each file once on either side.
    """
    ways = pairs.filter((pl.col("repository") != pl.col("repository_now")) | (pl.col("path") != pl.col("path_now")))
    keys = ["repository", "folder", "repository_now", "folder_now"]
    ways = ways.select(_way()).group_by(keys).len("votes").sort("votes", *keys, descending=[True, *[False] * 4])
    before, after = (frame.select(_PLACE).unique() for frame in (corpora.old, corpora.new))
    vanished, appeared = before.join(after, on=_PLACE, how="anti"), after.join(before, on=_PLACE, how="anti")
    stem = pl.when(pl.col("folder") == "").then(pl.lit("")).otherwise(pl.col("folder") + "/")
    stem_now = pl.when(pl.col("folder_now") == "").then(pl.lit("")).otherwise(pl.col("folder_now") + "/")
    led = (
        vanished.join(ways.head(MOST_WAYS), on="repository")
        .filter(pl.col("path").str.starts_with(stem))
        .with_columns(path_now=stem_now + pl.col("path").str.slice(stem.str.len_chars()), depth=stem.str.len_chars())
        .join(appeared.rename({name: f"{name}_now" for name in _PLACE}), on=["repository_now", "path_now"], how="semi")
        .sort("depth", "votes", *_PLACE, "repository_now", "path_now", descending=[True, True, *[False] * 4])
        .unique(_PLACE, keep="first", maintain_order=True)
        .unique(["repository_now", "path_now"], keep="first", maintain_order=True)
    )
    return led.select(_HEIR)


def _way() -> list[pl.Expr]:
    """A pair's way: repositories and folders, without the part of the path that stayed at its end."""
    parts, parts_now = (pl.col(name).str.split("/").list.reverse() for name in ("path", "path_now"))
    kept, same = pl.lit(0, dtype=pl.Int64()), pl.lit(True)
    for depth in range(_DEEPEST):
        here, there = (side.list.get(depth, null_on_oob=True) for side in (parts, parts_now))
        same = same & here.eq(there).fill_null(False)
        kept = kept + same.cast(pl.Int64())
    folder, folder_now = (side.list.slice(kept).list.reverse().list.join("/") for side in (parts, parts_now))
    return [
        pl.col("repository"),
        folder.alias("folder"),
        pl.col("repository_now"),
        folder_now.alias("folder_now"),
    ]


def _near(pairs: pl.DataFrame, heirs: pl.DataFrame) -> pl.DataFrame:
    """Add to pairs of an old and a later place how near they are (`near`) and whether it is one file (`same_file`)."""
    repository = pl.col("repository") == pl.col("repository_now")
    same_file = (repository & (pl.col("path") == pl.col("path_now"))) | pl.col("heir").fill_null(False)
    return (
        pairs.join(heirs.with_columns(heir=pl.lit(True)), on=_HEIR, how="left")
        .with_columns(same_file=same_file)
        .with_columns(
            near=pl.col("same_file") * NEARNESS["same_file"]
            + repository * NEARNESS["same_repository"]
            + (pl.col("name") == pl.col("name_now")) * NEARNESS["same_name"]
        )
        .drop("heir")
    )


def _at_the_nearest(pairs: pl.DataFrame) -> pl.DataFrame:
    """For each old chunk one pair, at the nearest place, with its `successors`."""
    return (
        pairs.sort(["old", "near", "doc_id"], descending=[False, True, False])
        .unique("old", keep="first", maintain_order=True)
        .with_columns(successors=pl.concat_list("doc_id"))
    )


def _whole_in_its_file(open_: pl.DataFrame, corpora: Corpora) -> pl.DataFrame:
    """Chunks whose text stands whole in their file, white space aside: `old`, `successors`.

    A file's only chunk is left out: the file is the chunk then, and text added to it has edited it.
    """
    squeezed = pl.col("text").str.replace_all(r"\s+", "")
    several = corpora.old.group_by(_PLACE).len("chunks").filter(pl.col("chunks") > 1)
    old = open_.join(several, on=_PLACE, how="semi").select("old", *_PLACE, text=squeezed)
    new = corpora.new.join(old, on=_PLACE, how="semi").select("new", "doc_id", *_PLACE, text=squeezed)
    new = new.sort("new").with_columns(to=pl.col("text").str.len_bytes().cum_sum().over(_PLACE))
    files = new.group_by(_PLACE, maintain_order=True).agg(whole=pl.col("text").str.join(""))
    found = (
        old.join(files, on=_PLACE)
        .select(
            "old",
            *_PLACE,
            at=pl.col("whole").str.find(pl.col("text"), literal=True),
            size=pl.col("text").str.len_bytes(),
        )
        .filter(pl.col("at").is_not_null() & (pl.col("size") > 0))
    )
    spans = new.select(*_PLACE, "new", "doc_id", "to", start=pl.col("to") - pl.col("text").str.len_bytes())
    return (
        found.join(spans, on=_PLACE)
        .filter((pl.col("start") < pl.col("at") + pl.col("size")) & (pl.col("at") < pl.col("to")))
        .sort("old", "new")
        .group_by("old", maintain_order=True)
        .agg(successors=pl.col("doc_id"))
    )


def _new_content(corpora: Corpora) -> pl.DataFrame:
    """Later chunks that did not stand at their place, with this text, in the baseline."""
    return corpora.new.join(corpora.old, on=[*_PLACE, "content_hash"], how="anti")


def _shared_passages(
    open_: pl.DataFrame, candidates: pl.DataFrame, baseline: pl.DataFrame, heirs: pl.DataFrame
) -> pl.DataFrame:
    """Successors by shared passages: `old`, `new`, `place` (0 for the best), `gain`, `covered`, `evidence`."""
    stood = fingerprints(baseline.select(key="old", text="text")).rename({"key": "old"})
    new = fingerprints(candidates.select(key="new", text="text")).rename({"key": "new"})
    old = stood.join(open_.select("old"), on="old", how="semi")
    counts = [side["fingerprint"].value_counts() for side in (stood, new)]
    spread = pl.concat(counts).group_by("fingerprint").agg(pl.col("count").max())
    # Whole numbers add up to the same sum in every order, so that equal tables have equal bytes.
    rare = spread.filter(pl.col("count") <= MOST_CHUNKS_OF_A_PASSAGE).select(
        "fingerprint", weight=(2**20 / pl.col("count").log1p()).round()
    )
    old = old.join(rare, on="fingerprint", how="inner")
    weights = old.group_by("old").agg(total=pl.col("weight").sum())
    shared = old.join(new, on="fingerprint", how="inner")
    shared = _without_passing_likeness(shared, weights)
    shared = _arrived(shared, stood.join(rare, on="fingerprint", how="semi"), candidates, baseline, heirs)
    nearness = _nearness(shared.select("old", "new").unique(), open_, candidates, heirs)
    chosen = []
    for place in range(MOST_SUCCESSORS):
        gains = (
            shared.group_by("old", "new")
            .agg(gain=pl.col("weight").sum(), passages=pl.len())
            .join(weights, on="old")
            .with_columns(gain=pl.col("gain") / pl.col("total"))
            .join(nearness, on=["old", "new"])
            .filter(
                pl.when("same_file")
                .then(pl.col("gain") >= ADDS)
                .otherwise((pl.col("gain") >= ADDS_ELSEWHERE) & (pl.col("passages") >= LEAST_PASSAGES))
            )
            .sort(["old", pl.col("gain") + pl.col("near"), "new"], descending=[False, True, False])
            .unique("old", keep="first", maintain_order=True)
            .select("old", "new", "gain", at_home="same_file", place=pl.lit(place))
        )
        if gains.is_empty():
            break
        chosen.append(gains)
        taken = shared.join(gains, on=["old", "new"], how="semi").select("old", "fingerprint")
        shared = shared.join(gains.select("old"), on="old", how="semi").join(
            taken, on=["old", "fingerprint"], how="anti"
        )
    if not chosen:
        return _NO_SUCCESSORS
    enough = pl.when(pl.col("at_home").any().over("old")).then(FOUND).otherwise(FOUND_ELSEWHERE)
    found = pl.concat(chosen).with_columns(covered=pl.col("gain").sum().over("old"))
    percent = (pl.col("covered") * 100).round().cast(pl.Int64)
    count = pl.len().over("old")
    return (
        found.filter(pl.col("covered") >= enough)
        .with_columns(
            evidence=pl.format(
                "{}% of its passages, in {} new chunk{}",
                percent,
                count,
                pl.when(count > 1).then(pl.lit("s")).otherwise(pl.lit("")),
            )
        )
        .drop("at_home")
    )


def _common_passages(open_: pl.DataFrame, candidates: pl.DataFrame, heirs: pl.DataFrame) -> pl.DataFrame:
    """Successors in the chunk's own file or its heir by all passages, also those that stand in many files."""
    now = {name: f"{name}_now" for name in _PLACE}
    places = pl.concat(
        [open_.select(_PLACE).unique().with_columns(repository_now="repository", path_now="path"), heirs]
    )
    old = open_.join(places, on=_PLACE)
    new = candidates.rename(now).join(places, on=list(now.values()), how="semi")
    marks = [
        fingerprints(frame.select(key=number, text="text")).rename({"key": number})
        for frame, number in ((old.unique("old"), "old"), (new, "new"))
    ]
    totals = marks[0].group_by("old").agg(total=pl.len())
    here, there = (
        frame.select(number, *now.values()).join(mark, on=number)
        for frame, number, mark in ((old, "old", marks[0]), (new, "new", marks[1]))
    )
    pairs = here.join(there, on=[*now.values(), "fingerprint"])
    return (
        pairs.group_by("old", "new")
        .agg(shared=pl.len())
        .join(totals, on="old")
        .with_columns(gain=pl.col("shared") / pl.col("total"))
        .filter(pl.col("gain") >= FOUND)
        .sort(["old", "gain", "new"], descending=[False, True, False])
        .unique("old", keep="first", maintain_order=True)
        .select(
            "old",
            "new",
            "gain",
            place=pl.lit(0, dtype=pl.Int32()),
            covered=pl.col("gain"),
            evidence=pl.format(
                "{}% of its passages, common ones, in 1 new chunk of its file",
                (pl.col("gain") * 100).round().cast(pl.Int64),
            ),
        )
    )


def _arrived(
    shared: pl.DataFrame, stood: pl.DataFrame, candidates: pl.DataFrame, baseline: pl.DataFrame, heirs: pl.DataFrame
) -> pl.DataFrame:
    """Only passages that are new where they now stand: in the file, or in the repository if it is another one."""
    # Files and repositories by number: there are millions of passages.
    names = pl.concat([baseline.select(_PLACE), candidates.select(_PLACE)]).unique().sort(_PLACE)
    files = names.with_row_index("file").with_columns(owner=pl.col("repository").rank("dense"))
    now, heir = (
        {"repository": "repository_now", "path": "path_now"},
        dict(zip(_PLACE, ["from", "path_then"], strict=True)),
    )
    sources = heirs.rename(heir).join(files.rename(heir | {"file": "source", "owner": "_"}), on=list(heir.values()))
    origin = files.rename(now).join(sources, on=list(now.values()), how="left")
    origin = origin.select(*now.values(), "owner", home=pl.coalesce("source", "file"))
    old = baseline.join(files, on=_PLACE).select("old", "file", owner_then="owner")
    new = candidates.rename(now).join(origin, on=list(now.values())).select("new", "home", "owner")
    before = stood.join(shared.select("fingerprint").unique(), on="fingerprint", how="semi").join(old, on="old")
    in_file = before.select("fingerprint", home="file", in_file=pl.lit(True)).unique()
    in_repository = before.select("fingerprint", owner="owner_then", in_repository=pl.lit(True)).unique()
    within, at_home = pl.col("owner") == pl.col("owner_then"), pl.col("home") == pl.col("file")
    return (
        shared.join(old, on="old")
        .join(new, on="new")
        .join(in_file, on=["home", "fingerprint"], how="left")
        .join(in_repository, on=["owner", "fingerprint"], how="left")
        .filter(at_home | (within & pl.col("in_file").is_null()) | (~within & pl.col("in_repository").is_null()))
        .select("old", "new", "fingerprint", "weight")
    )


_NO_SUCCESSORS = pl.DataFrame(
    schema={
        "old": pl.UInt32(),
        "new": pl.UInt32(),
        "gain": pl.Float64(),
        "place": pl.Int32(),
        "covered": pl.Float64(),
        "evidence": pl.String(),
    }
)


def _without_passing_likeness(shared: pl.DataFrame, weights: pl.DataFrame) -> pl.DataFrame:
    """Drop pairs that share next to nothing, which are most of them."""
    worth = (
        shared.group_by("old", "new")
        .agg(gain=pl.col("weight").sum())
        .join(weights, on="old")
        .filter(pl.col("gain") >= ADDS * pl.col("total"))
        .select("old", "new")
    )
    return shared.join(worth, on=["old", "new"], how="semi")


def _nearness(pairs: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame, heirs: pl.DataFrame) -> pl.DataFrame:
    """`old`, `new`, `same_file` and `near` of pairs."""
    joined = pairs.join(old.select("old", *_PLACE, "name"), on="old").join(
        new.select("new", *_PLACE, "name"), on="new", suffix="_now"
    )
    return _near(joined, heirs).select("old", "new", "same_file", "near")


def _shared_symbols(
    rest: pl.DataFrame, corpora: Corpora, candidates: pl.DataFrame, heirs: pl.DataFrame
) -> pl.DataFrame:
    """Successors by symbols that one old chunk alone defined and that new chunks of the language define."""
    own = _symbols(corpora.old, "old")
    unique = own.join(own.group_by("symbol").len("times").filter(pl.col("times") == 1), on="symbol", how="semi")
    wanted = unique.join(rest.select("old"), on="old", how="semi")
    totals = wanted.group_by("old").agg(total=pl.len())
    now = _symbols(candidates, "new")
    few = now.group_by("symbol").len("times").filter(pl.col("times") <= 2)
    pairs = (
        wanted.join(now.join(few, on="symbol", how="semi"), on=["symbol", "extension"])
        .group_by("old", "new")
        .agg(symbols=pl.col("symbol").sort(), gain=pl.len(), types=pl.col("is_type").any())
        .join(totals, on="old")
        .with_columns(gain=pl.col("gain") / pl.col("total"))
        .filter(pl.col("gain") >= LEAST_SYMBOLS_SHARED)
    )
    if pairs.is_empty():
        return _NO_SUCCESSORS
    near = _nearness(pairs.select("old", "new"), rest, candidates, heirs)
    best = (
        pairs.join(near, on=["old", "new"])
        .filter(pl.col("types") | pl.col("same_file") | (pl.col("symbols").list.len() >= LEAST_FUNCTIONS))
        .sort(["old", pl.col("gain") + pl.col("near"), "new"], descending=[False, True, False])
        .unique("old", keep="first", maintain_order=True)
    )
    return best.select(
        "old",
        "new",
        "gain",
        place=pl.lit(0, dtype=pl.Int32()),
        covered=pl.col("gain"),
        evidence=pl.format("it defines {} now", pl.col("symbols").list.head(5).list.join(", ")),
    )


def _symbols(chunks: pl.DataFrame, number: str) -> pl.DataFrame:
    """Types and functions that each chunk defines: the number, `symbol`, `is_type`, `extension` of the file."""
    extension = pl.col("name").str.extract(r"(\.[^.]+)$").fill_null("")

    def defined(pattern: str, is_type: bool) -> pl.DataFrame:
        found = pl.col("text").str.extract_all(pattern).list.eval(pl.element().str.extract(r"([A-Za-z_$][\w$]*)\s*$"))
        return (
            chunks.select(number, extension=extension, symbol=found)
            .explode("symbol")
            .drop_nulls()
            .with_columns(is_type=pl.lit(is_type))
        )

    both = pl.concat([defined(TYPE, True), defined(FUNCTION, False)])
    return both.sort("is_type", descending=True).unique([number, "symbol"], keep="first", maintain_order=True)


def _name(found: pl.DataFrame, corpora: Corpora, heirs: pl.DataFrame) -> pl.DataFrame:
    """Name the outcome of each old chunk from the places of its successors."""
    if found.is_empty():
        return pl.DataFrame(
            schema={
                "old": pl.UInt32(),
                "outcome": pl.String(),
                "successors": pl.List(pl.String()),
                "score": pl.Float64(),
                "evidence": pl.String(),
            }
        )
    pairs = (
        found.join(corpora.old.select("old", *_PLACE, "name"), on="old")
        .join(corpora.new.select("new", "doc_id", *_PLACE, "name"), on="new", suffix="_now")
        .join(_standing_files(corpora), on=["repository_now", "path_now"], how="left")
        .with_columns(
            at_home=(pl.col("repository") == pl.col("repository_now")) & (pl.col("path") == pl.col("path_now")),
            within=pl.col("repository") == pl.col("repository_now"),
            stood=pl.col("stood").fill_null(False),
            file=pl.format("{}/{}", "repository_now", "path_now"),
        )
    )
    # A file that stood and takes passages in is a merger, and so is a new one for all but its main source: the file
    # whose heir it is, or one of its name, or one that brought most of it.
    pairs = pairs.join(heirs.with_columns(heir=pl.lit(True)), on=_HEIR, how="left").with_columns(
        pl.col("heir").fill_null(False), namesake=pl.col("name") == pl.col("name_now")
    )
    main = (
        pairs.filter(~pl.col("at_home"))
        .group_by("file", *_PLACE)
        .agg(pl.col("heir", "namesake").any(), brought=pl.col("gain").sum())
        .with_columns(most=pl.col("brought") >= MAIN_SOURCE * pl.col("brought").sum().over("file"))
        .sort(["file", "heir", "namesake", "brought", *_PLACE], descending=[False, True, True, True, False, False])
        .unique("file", keep="first", maintain_order=True)
        .select("file", *_PLACE, main=pl.col("heir") | pl.col("namesake") | pl.col("most"))
    )
    pairs = pairs.join(main, on=["file", *_PLACE], how="left").sort("old", "place")
    gain_within = (pl.col("gain") * pl.col("within")).sum()
    gain_at_home = (pl.col("gain") * pl.col("at_home")).sum()
    by_chunk = pairs.group_by("old", maintain_order=True).agg(
        covered=pl.col("covered").first(),
        mostly_elsewhere=gain_within < pl.col("gain").sum() / 2,
        at_home=gain_at_home > 0,
        home_share=gain_at_home / pl.col("gain").sum(),
        files=pl.col("file").n_unique(),
        same_name=pl.col("name").first() == pl.col("name_now").first(),
        merged=pl.col("stood").first() | ~pl.col("main").first().fill_null(False),
        successors=pl.col("doc_id"),
        score=pl.col("gain").first().clip(0, 1),
        evidence=pl.col("evidence").first(),
    )
    outcome = (
        pl.when("mostly_elsewhere")
        .then(pl.lit("migrated"))
        .when(pl.col("at_home") & (pl.col("files") == 1))
        .then(pl.lit("edited"))
        .when(pl.col("files") > 1)
        .then(pl.lit("split"))
        .when("merged")
        .then(pl.lit("merged"))
        .when("same_name")
        .then(pl.lit("moved"))
        .otherwise(pl.lit("renamed"))
    )
    return by_chunk.select("old", outcome.alias("outcome"), "successors", "score", "evidence")


def _standing_files(corpora: Corpora) -> pl.DataFrame:
    """Files of the later snapshot that the baseline had too."""
    files = corpora.old.select(repository_now="repository", path_now="path").unique()
    return files.with_columns(stood=pl.lit(True))
