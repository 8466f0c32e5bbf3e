from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshstack_dagster.retrieval.analysis import CODE, ENGLISH, Vocabulary


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Porter's stemmers are running", ["porter", "stemmer", "run"]),
        ("O'Neil’s well-known e.g. 3,204.5 a_b x.y", ["o'neil", "well", "known", "e.g", "3,204.5", "a_b", "x.y"]),
        ("is it to be, or not to be?", []),
        ("___ -- ++ ...", []),
        # Porter's own extensions, which Lucene has and Snowball's `porter` has not.
        ("technology technological apology", ["technolog", "technolog", "apolog"]),
        ("possibly possible", ["possibl", "possibl"]),
        ("s as us", ["s", "us"]),
        ("模型 データ", ["模", "型", "データ"]),
        ("std::vector a:b", ["std", "vector", "a:b"]),
    ],
)
def test_english_terms_are_lucenes(text: str, terms: list[str]) -> None:
    assert ENGLISH.terms(text) == terms


def test_a_long_token_is_cut_as_lucene_cuts_it() -> None:
    assert [len(term) for term in ENGLISH.terms("x1" * 300)] == [255, 255, 90]
    assert CODE.terms("x1" * 300) == []


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("C++ and C# not C", ["c++", "c#", "c"]),
        ("C++17", ["c++17", "c++"]),
        ("i++;", ["i++"]),
        ("snake_case_name", ["snake_case_name", "snake", "case", "name"]),
        ("XMLHttpRequest", ["xmlhttprequest", "xml", "http", "request"]),
        ("getUsers()", ["getusers", "get", "user"]),
        ("__init__", ["init"]),
        ("v17.0.1", ["17.0.1"]),
        ("Angular 17.0.1", ["angular", "17.0.1"]),
        ("this.router.navigate", ["router", "navig"]),
        ("MAX_VALUE", ["max_value", "max", "valu"]),
        ("isNotA", ["isnota"]),
        ("base64Encode", ["base64encode", "base64", "encod"]),
        ("naïve_größe", ["naïve_größe", "naïv", "größe"]),
    ],
)
def test_code_terms_keep_identifiers_and_their_parts(text: str, terms: list[str]) -> None:
    assert CODE.terms(text) == terms


@given(st.lists(st.text(max_size=60), max_size=5))
def test_a_vocabulary_gives_the_terms_of_each_text(texts: list[str]) -> None:
    for analysis in (ENGLISH, CODE):
        vocabulary = Vocabulary(analysis)
        encoded = list(vocabulary.encode(texts))
        names = list(vocabulary.ids)
        assert [[names[number] for number in numbers] for numbers in encoded] == [analysis.terms(t) for t in texts]
        assert all(term for term in names)
