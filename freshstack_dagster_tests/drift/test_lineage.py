from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.drift.lineage import follow, trace_lineage

OUTCOMES = {"unchanged", "moved", "renamed", "edited", "split", "merged", "migrated", "gone"}


def corpus(files: dict[str, list[str] | str]) -> pl.DataFrame:
    """Chunks of files named `repository/path`, whose texts stand one after the other."""
    rows = []
    for file, texts in files.items():
        repository, path = file.split("/", 1)
        start = 0
        for text in [texts] if isinstance(texts, str) else texts:
            end = start + len(text.encode())
            digest = hashlib.sha256(text.encode()).hexdigest()
            rows.append((f"{file}_{start}_{end}", repository, path, start, digest, text))
            start = end
    schema = ["doc_id", "repository", "path", "start_byte", "content_hash", "text"]
    return pl.DataFrame(
        rows, schema={name: pl.Int64 if name == "start_byte" else pl.String for name in schema}, orient="row"
    )


def words(start: int, count: int = 60) -> str:
    """Words that stand nowhere else, in lines of ten."""
    lines = [" ".join(f"term{i}" for i in range(line, line + 10)) for line in range(start, start + count, 10)]
    return "\n".join(lines) + "\n"


def outcome(old: dict, new: dict) -> dict[str, str]:
    """The outcome of each old chunk by its file, several chunks numbered."""
    found = follow(corpus(old), corpus(new)).sort("doc_id")
    return dict(zip(found["doc_id"].str.replace(r"_\d+_\d+$", ""), found["outcome"], strict=True))


A, B, C, D = words(0), words(1000), words(2000), words(3000)


@pytest.mark.parametrize(
    ("expected", "old", "new"),
    [
        ("unchanged", {"lib/a.py": A}, {"lib/a.py": A}),
        ("moved", {"lib/a.py": A}, {"lib/core/a.py": A}),
        ("moved", {"lib/a.py": A}, {"lib/core/a.py": A + words(90, 10)}),
        ("renamed", {"lib/a.py": A}, {"lib/b.py": A}),
        ("renamed", {"lib/a.py": A}, {"lib/b.py": words(500, 20) + A}),
        ("edited", {"lib/a.py": A}, {"lib/a.py": words(0, 40) + B}),
        ("edited", {"lib/a.py": A}, {"lib/a.py": A + B}),
        ("split", {"lib/a.py": A + B}, {"lib/x.py": A, "lib/y.py": B}),
        ("merged", {"lib/a.py": A}, {"lib/b.py": B + A}),
        ("migrated", {"lib/a.py": A}, {"docs/a.py": A}),
        ("migrated", {"lib/a.py": A}, {"docs/z.py": C + A + D}),
        ("gone", {"lib/a.py": A}, {"lib/a.py": B}),
        ("gone", {"lib/a.py": A}, {}),
    ],
)  # fmt: skip
def test_each_outcome(expected: str, old: dict, new: dict):
    if expected == "merged":
        old = {**old, "lib/b.py": B}
    assert outcome(old, new)["lib/a.py"] == expected


def test_text_added_to_a_files_only_chunk_edits_it():
    assert outcome({"lib/a.md": A}, {"lib/a.md": A + "\nAnd one line more.\n"}) == {"lib/a.md": "edited"}


def test_borders_that_move_in_a_file_of_several_chunks_change_nothing():
    old = corpus({"lib/a.md": [A, B, C]})
    new = corpus({"lib/a.md": [D, words(0, 30), words(30, 30) + words(1000, 20), words(1020, 40) + C]})
    found = follow(old, new)
    assert set(found["outcome"]) == {"unchanged"}
    assert found.filter(pl.col("doc_id") == old["doc_id"][0])["successors"].to_list() == [new["doc_id"][1:3].to_list()]
    assert found["score"].to_list() == [1.0] * 3


def test_a_line_added_inside_a_chunk_edits_it_also_in_a_file_of_several():
    found = follow(
        corpus({"lib/a.md": [A, B]}), corpus({"lib/a.md": [A, words(1000, 30) + "one line more\n" + words(1030, 30)]})
    )
    assert found.sort("doc_id")["outcome"].to_list() == ["unchanged", "edited"]


def test_a_copy_that_was_there_before_is_no_destination():
    old = {"lib/a.md": A, "lib/copy.md": A}
    assert outcome(old, {"lib/copy.md": A}) == {"lib/a.md": "merged", "lib/copy.md": "unchanged"}


def test_what_stands_unchanged_descends_from_itself_alone():
    """A near copy that was there before is not where an old chunk went."""
    old = {"lib/a.md": A, "lib/b.md": words(0, 50) + B}
    assert outcome(old, {"lib/b.md": words(0, 50) + B})["lib/a.md"] == "gone"


def test_a_class_that_was_rewritten_elsewhere_is_known_by_its_name():
    old = {"lib/a.py": f"class LedgerSheetLoader:\n    pass\n{A}"}
    new = {"contrib/ledger.py": f"class LedgerSheetLoader:\n    other = 1\n{B}"}
    found = follow(corpus(old), corpus(new)).row(0, named=True)
    assert (found["outcome"], found["evidence"]) == ("migrated", "it defines LedgerSheetLoader now")


def test_boilerplate_shared_by_many_says_nothing():
    licence = words(9000, 40)
    old = {f"lib/{i}.py": licence + words(i * 100, 20) for i in range(45)}
    new = {f"lib/{i}.py": licence + words(i * 100, 20) for i in range(1, 45)} | {
        "lib/new.py": licence + words(7000, 20)
    }
    assert outcome(old, new)["lib/0.py"] == "gone"


# Chunks of few words from a small vocabulary: copies, near copies and empty texts come up by themselves.
TEXTS = st.lists(st.integers(0, 12), max_size=12).map(lambda lines: "".join(words(100 * line, 10) for line in lines))
FILES = st.dictionaries(
    st.sampled_from([f"{repository}/{path}" for repository in ("lib", "docs") for path in ("a.md", "b.md", "x/a.md")]),
    st.lists(TEXTS, min_size=1, max_size=4),
    max_size=5,
).map(lambda files: {file: [t if t else " \n" * (i + 1) for i, t in enumerate(texts)] for file, texts in files.items()})


@settings(max_examples=15, deadline=None)
@given(files=FILES)
def test_of_equal_corpora_all_is_unchanged(files):
    found = follow(corpus(files), corpus(files))
    assert found.height == corpus(files).height
    assert set(found["outcome"]) <= {"unchanged"}


@settings(max_examples=15, deadline=None)
@given(old=FILES, new=FILES)
def test_every_chunk_has_one_outcome_with_successors_that_exist(old, new):
    before, after = corpus(old), corpus(new)
    found = follow(before, after)
    assert sorted(found["doc_id"]) == sorted(before["doc_id"])
    assert set(found["outcome"]) <= OUTCOMES
    for row in found.iter_rows(named=True):
        assert (row["outcome"] == "gone") == (row["successors"] == [])
        assert set(row["successors"]) <= set(after["doc_id"])
        assert len(set(row["successors"])) == len(row["successors"])
        assert row["score"] is None or 0 < row["score"] <= 1
        home = {doc_id for doc_id in row["successors"] if doc_id.startswith(f"{row['repository']}/")}
        assert row["outcome"] != "migrated" or len(home) < len(row["successors"])


@settings(max_examples=12, deadline=None)
@given(old=FILES, new=FILES, seed=st.integers(0, 2**16))
def test_the_order_of_rows_changes_nothing(old, new, seed):
    before, after = corpus(old), corpus(new)
    plain = follow(before, after).sort("doc_id")
    shuffled = follow(
        before.sample(fraction=1, shuffle=True, seed=seed), after.sample(fraction=1, shuffle=True, seed=seed)
    ).sort("doc_id")
    assert plain.equals(shuffled)


def test_the_tables_hold_supporting_chunks_and_count_all():
    old, new = corpus({"lib/a.md": A, "lib/b.md": B}), corpus({"lib/a.md": A})
    judgments = pl.DataFrame(
        {
            "doc_id": [old["doc_id"][1]] * 2,
            "nugget_id": ["1_0", "1_1"],
            "verdict": ["supported", "supported"],
        }
    )
    lineage, summary = trace_lineage(old, {"2025-10": new}, judgments)
    assert lineage.select("doc_id", "outcome", "supports").rows() == [(old["doc_id"][1], "gone", 2)]
    assert summary.select("outcome", "chunks", "share").rows() == [("gone", 1, 0.5), ("unchanged", 1, 0.5)]


def test_no_later_snapshot_gives_empty_tables():
    judgments = pl.DataFrame(schema={"doc_id": pl.String, "nugget_id": pl.String, "verdict": pl.String})
    lineage, summary = trace_lineage(corpus({"lib/a.md": A}), {}, judgments)
    assert lineage.is_empty()
    assert summary.is_empty()


def test_the_sample_by_its_truth(sample, truth):
    """Every outcome occurs, each on the files that the truth names, with successors in the files it names."""
    found = follow(sample["2024-10"], sample["2025-10"])
    file = pl.col("doc_id").str.replace(r"_\d+_\d+$", "")
    by_file = {key[0]: rows for key, rows in found.with_columns(file=file).group_by("file")}
    assert set(found["outcome"]) == OUTCOMES
    assert {row["outcome"] for row in truth["lineage"]} == OUTCOMES
    for row in truth["lineage"]:
        for source in row["from"]:
            rows = by_file[source]
            assert set(rows["outcome"]) == {row["outcome"]}, source
            went = {str(Path(doc_id)).rsplit("_", 2)[0] for ids in rows["successors"] for doc_id in ids}
            assert went == set(row["to"]), source


def test_a_file_follows_its_neighbours_when_a_folder_moves():
    """Also one that was edited so heavily that its text alone would not tell, or that has a namesake elsewhere."""
    old = {"lib/core/a.md": A, "lib/core/b.md": words(1000, 100), "lib/core/__init__.py": "# made by hand\n"}
    new = {"lib/packages/a.md": A, "lib/packages/b.md": words(1000, 30) + words(5000, 200)}
    new |= {"lib/another/__init__.py": "# made by hand\n", "lib/packages/__init__.py": "# made by hand\n"}
    found = follow(corpus(old), corpus(new))
    assert set(found["outcome"]) == {"moved"}
    assert {successors[0].split("/")[1] for successors in found["successors"]} == {"packages"}


def test_copies_of_one_text_each_go_their_own_way():
    licence = words(9000, 40)
    old = {f"lib/{name}/LICENSE": licence for name in ("one", "two", "three")} | {"lib/one/a.md": A, "lib/two/b.md": B}
    new = {f"lib/packages/{name}/LICENSE": licence for name in ("one", "two", "three")}
    new |= {"lib/packages/one/a.md": A, "lib/packages/two/b.md": B}
    found = follow(corpus(old), corpus(new)).filter(pl.col("doc_id").str.contains("LICENSE"))
    went = {row["doc_id"].split("/")[1]: row["successors"][0].split("/")[2] for row in found.iter_rows(named=True)}
    assert went == {"one": "one", "two": "two", "three": "three"}


def test_what_a_moved_file_held_already_did_not_come_from_elsewhere():
    """A page that a moved page resembles is gone, not merged into it."""
    old = {"lib/docs/a.md": A + words(100, 20), "lib/notes/x.md": A, "lib/docs/b.md": B}
    new = {"lib/pages/a.md": A + words(100, 20) + words(7000, 10), "lib/pages/b.md": B}
    assert outcome(old, new) == {"lib/docs/a.md": "moved", "lib/docs/b.md": "moved", "lib/notes/x.md": "gone"}


def test_functions_alone_do_not_carry_a_chunk_to_another_file():
    old = {"lib/test_a.py": f"def test_get_one():\n    pass\n{A}"}
    new = {"lib/test_b.py": f"def test_get_one():\n    other\n{B}"}
    assert outcome(old, new) == {"lib/test_a.py": "gone"}
    assert outcome(old, {"lib/test_a.py": f"def test_get_one():\n    other\n{B}"}) == {"lib/test_a.py": "edited"}
