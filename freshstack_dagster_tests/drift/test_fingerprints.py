from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.drift import fingerprints as module
from freshstack_dagster.drift.fingerprints import RUN, WINDOW, fingerprints

WORDS = st.lists(st.sampled_from([f"word{i}" for i in range(60)]), min_size=1, max_size=80)


def _of(texts: list[str]) -> dict[int, set[int]]:
    frame = fingerprints(
        pl.DataFrame({"key": list(range(len(texts))), "text": texts}, schema_overrides={"key": pl.UInt32})
    )
    found: dict[int, set[int]] = {key: set() for key in range(len(texts))}
    for key, fingerprint in frame.iter_rows():
        assert fingerprint not in found[key]
        found[key].add(fingerprint)
    return found


@settings(max_examples=60, deadline=None)
@given(before=WORDS, passage=WORDS, after=WORDS, other_before=WORDS, other_after=WORDS)
def test_a_passage_of_a_window_is_always_found(before, passage, after, other_before, other_after):
    """Winnowing's guarantee (Schleimer, Wilkerson and Aiken 2003, section 3)."""
    one = " ".join([*before, *passage, *after])
    other = "\n".join([*other_before, *passage, *other_after])
    found = _of([one, other])
    if len(passage) >= RUN + WINDOW - 1:
        assert found[0] & found[1]


@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_a_text_has_its_fingerprints_whatever_stands_beside_it(texts):
    joined = [" ".join(words) for words in texts]
    together = _of(joined)
    assert [together[key] for key in range(len(joined))] == [_of([text])[0] for text in joined]
    assert all(together.values())


def test_batches_change_nothing(monkeypatch):
    texts = [" ".join(f"w{i * j % 41}" for j in range(50)) for i in range(30)]
    whole = _of(texts)
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 200)
    assert _of(texts) == whole


def test_case_and_layout_do_not_matter_and_words_do():
    found = _of(
        ["def load(path):\n    return open(path)", "DEF load( path ) : return   open(path)", "def save(path): x"]
    )
    assert found[0] == found[1]
    assert not found[0] & found[2]


def test_texts_without_words_have_none():
    assert _of(["", "  \n", "{}();", "one"]) == {0: set(), 1: set(), 2: set(), 3: _of(["one"])[0]}


def test_about_two_in_seven_runs_are_kept():
    """The density of winnowing is 2 / (WINDOW + 1) on texts without repetition."""
    text = " ".join(f"w{i}" for i in range(20_000))
    assert abs(len(_of([text])[0]) / 20_000 - 2 / (WINDOW + 1)) < 0.02
