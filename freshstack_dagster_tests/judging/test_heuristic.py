"""The heuristic: statements as they stand, verdicts that can be followed, the same every time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.judging import heuristic
from freshstack_dagster.judging.replies import SCHEMAS, read_nuggets, read_sub_questions, read_support, support_schema
from freshstack_dagster.judging.statements import blocks, named, salient_statements, sentences, smaller_questions
from freshstack_dagster.judging.support import quote_stands_in
from freshstack_dagster.judging.terms import WINDOW, PooledTexts, nugget_terms, quote, supports
from freshstack_dagster.language_models.replies import read_object

ANSWER = """Hope this helps! I think you have two problems.

The capacity is not to blame: `Weir(policy="block")` waits for room by default. See [the docs](https://x.invalid/a).

Pass the limit outright:

```py
from lib import Weir
weir = Weir(capacity=500)  # more
```

1. Version 2.0 needs `if __name__ == "__main__":` at the entry point, e.g. in `app.py`.
2. Does that work for you?
"""
QUESTION = "Why does Weir block?\n\nI call `Weir()` and it hangs."

# A pool in which most terms are rare, as they are in a pool of a thousand texts.
FILLER = [f"word{number} stands here\nalone with term{number}" for number in range(200)]


def judge(nugget: str, text: str) -> bool:
    texts = {"it": text, **{str(number): filler for number, filler in enumerate(FILLER)}}
    return supports(PooledTexts(texts, {"it": [nugget]}).match(nugget, "it"))


def test_statements_are_what_names_software_in_the_answers_order_and_without_talk():
    statements = salient_statements(QUESTION, ANSWER)
    assert statements == [
        'The capacity is not to blame: `Weir(policy="block")` waits for room by default.',
        "In code: `weir = Weir(capacity=500) # more`",
        "In code: `from lib import Weir`",
        'Version 2.0 needs `if __name__ == "__main__":` at the entry point, e.g. in `app.py`.',
    ]


def test_an_answer_always_yields_a_statement():
    assert salient_statements("q", "It just works now.") == ["It just works now."]
    assert salient_statements("q", "") == ["(empty answer)"]
    assert salient_statements("q", "```\nx = compute(1)\n```") == ["In code: `x = compute(1)`"]
    assert len(salient_statements("q", "\n\n".join(f"Set `option_{n}` to {n}0." for n in range(20)))) == 5


def test_sub_questions_are_title_error_lines_and_questions():
    body = (
        "It stopped yesterday. What changed in the new version?\n\n```\nTraceback (most recent call last):\n"
        '  File "x.py", line 3\nValueError: limit must be positive\n```\nCan I turn the check off?'
    )
    assert smaller_questions("Limit refused", body) == [
        "Limit refused",
        "ValueError: limit must be positive",
        "What changed in the new version?",
        "Can I turn the check off?",
    ]


def test_prose_and_code_are_told_apart():
    text = "Do this:\n```js\na()\n\nb()\n```\n> Quoted *words*\n> go on.\n\n# Head\n- item\n~~~\nnever closed"
    assert [(block.text, block.code) for block in blocks(text)] == [
        ("Do this:", False),
        ("a()\n\nb()", True),
        ("Quoted words go on.", False),
        ("Head", False),
        ("item", False),
        ("never closed", True),
    ]


def test_sentences_end_neither_in_code_nor_in_versions_nor_in_abbreviations():
    assert sentences("Use `a. B` of v2.0 Then go, e.g. Monday. Next one! Done") == [
        "Use `a. B` of v2.0 Then go, e.g. Monday.",
        "Next one!",
        "Done",
    ]


def test_names_are_found():
    text = "Set `max size` and --dry-run in app.config.ts with useThing() and snake_case on v17 or 4,096 in 3 steps"
    found = named(text)
    for name in ("max", "dry-run", "app", "config", "usething", "snake_case", "v17", "4,096"):
        assert name in found
    assert "3" not in found
    assert "set" not in found


@pytest.mark.parametrize(
    ("nugget", "text"),
    [
        ("A weir holds 2_000 records by default.", "The weir's default: it holds 2,000 records."),
        ("Call `provideHttpClient()` in `main.ts`.", "// main.ts\nbootstrap(App, {providers: [provideHttpClient()]})"),
        ("Since v17 components are standalone.", "Version 17 makes every component standalone."),
        ("Pass `--no-standalone` to the generator.", "ng new app --no-standalone  # the generator is passed a flag"),
        ("`max_rows` limits batches.", "max_rows: int  # limit of a batch"),
        ("Die Größe des Puffers zählt Zeilen.", "# Zeilen: die GRÖSSE? nein, die Größe des Puffers zählt"),
        ("設定 `最大値` 百件", "設定: 最大値 = 百件"),
    ],
)
def test_a_fact_is_found_in_other_dress(nugget, text):
    assert judge(nugget, text)


@pytest.mark.parametrize(
    ("nugget", "text"),
    [
        ("A weir holds 2,000 records by default.", "A weir evens out bursts."),
        ("Call `provideHttpClient()` in `main.ts`.", "import {HttpClientModule} from 'http'"),
        ("`spill_limit` is 500 records.", "`silt_limit` is 500 lines."),
        ("The port is 9417.", ""),
        ("", "anything"),
    ],
)
def test_what_is_not_there_is_no_support(nugget, text):
    assert not judge(nugget, text)


def test_terms_far_apart_are_no_support():
    near = "alpha_limit is set\nbeta_limit is raised"
    far = near.replace("\n", "\n" * (WINDOW + 3))
    nugget = "`alpha_limit` and `beta_limit` `gamma_limit`"
    assert judge(nugget, near)
    assert not judge(nugget, far)


def test_everyday_words_alone_are_no_support():
    texts = {str(number): f"post the async value {number}" for number in range(50)}
    match = PooledTexts(texts, {"1": ["post async"]}).match("post async", "1")
    assert match.score == 1.0
    assert not supports(match)


def test_terms_are_identifiers_numbers_and_stems():
    text = "Running `mat.define-palette` with retryOn, v17 and 3 lanes, größer"
    kinds = {term.shown: term.kind for term in nugget_terms(text)}
    assert kinds == {
        "Running": "word",
        "mat": "word",
        "define-palette": "identifier",
        "retryOn": "identifier",
        "v17": "number",
        "lanes": "word",
        "größer": "word",
    }


def test_the_quote_is_the_window_as_it_stands():
    text = "first\r\n\tset alpha_limit = 5;\r\n  then  beta_limit\r\nlast"
    nugget = "`alpha_limit` and `beta_limit`"
    pooled = PooledTexts({"it": text, **{str(n): filler for n, filler in enumerate(FILLER)}}, {"it": [nugget]})
    match = pooled.match(nugget, "it")
    assert quote(match, text) == "set alpha_limit = 5;\r\n  then  beta_limit"
    assert (match.start_line, match.end_line) == (1, 2)


def test_weights_hang_on_the_whole_pool_not_on_what_is_asked():
    texts = {str(number): filler for number, filler in enumerate(FILLER)}
    nugget = "word1 stands alone with term1"
    few = PooledTexts(texts, {"1": [nugget]}).match(nugget, "1")
    many = PooledTexts(texts, {str(number): [nugget, "word2"] for number in range(50)}).match(nugget, "1")
    assert few == many


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "![",
        "](",
        "`",
        "``` ",
        "__a ",
        "*a ",
        "a.",
        "a.b:",
        "Error",
        "> ",
        "- ",
        "x_",
        "aB",
        "1,",
        "=> ",
        ". A",
        "?",
    ],
)
def test_long_nonsense_is_read_in_time(piece):
    text = piece * (60_000 // len(piece))
    started = time.process_time()
    statements = salient_statements("q", text)
    smaller_questions(text, text)
    assert PooledTexts({"it": text}, {"it": statements}).match(statements[0], "it")
    assert time.process_time() - started < 3


TEXTS = st.text(max_size=200) | st.lists(
    st.sampled_from(
        ["`open()`", "must", "max_rows", "v2.0", "\n", "```", "is", "Use", ".", "?", ":", "- ", "> ", "éß模"]
    ),
    max_size=30,
).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_whatever_the_texts_the_replies_pass_strict_reading(title, body, answer):
    """Every reply has the schema's shape, says something, and is the same when asked again."""
    import json

    inputs = {"title": title, "body": body, "answer": answer}
    nuggets = heuristic.REPLIES["nuggets"](inputs)
    read = read_nuggets(read_object(json.dumps(nuggets), SCHEMAS["nuggets"]))
    questions = heuristic.REPLIES["sub_questions"](inputs)
    assert read_sub_questions(read_object(json.dumps(questions), SCHEMAS["sub_questions"]))
    documents = [title, body, answer, body]
    support = heuristic.REPLIES["support"]({"nuggets": list(read), "documents": documents})
    verdicts = read_support(
        read_object(json.dumps(support), support_schema(4, len(read))), documents=4, nuggets=len(read)
    )
    for verdict, document in zip(verdicts, documents, strict=True):
        assert all(quote_stands_in(found, document) for found in verdict.quotes.values())
    assert verdicts[1].quotes == verdicts[3].quotes
    assert heuristic.REPLIES["nuggets"](inputs) == nuggets
