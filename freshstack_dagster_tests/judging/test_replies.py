"""Strict reading (cases 18 and 19): right as it stands, or an error; never a default."""

from __future__ import annotations

import json

import pytest

from freshstack_dagster.judging.replies import (
    LONGEST_STATEMENT,
    SCHEMAS,
    read_closed_book_answer,
    read_nuggets,
    read_sub_questions,
    read_support,
    support_schema,
)
from freshstack_dagster.language_models import ReplyError
from freshstack_dagster.language_models.replies import MalformedReply, read_object


def entry(document=1, supported=((1, "quote"),), unsupported=(2,), reason='because `list[int]` {is} "there"'):
    return {
        "document": document,
        "reason": reason,
        "supported": [{"nugget": nugget, "quote": quote} for nugget, quote in supported],
        "unsupported": list(unsupported),
    }


def read(*entries, documents=1, nuggets=2):
    return read_support({"documents": list(entries)}, documents=documents, nuggets=nuggets)


def test_a_right_reply_is_read_in_the_order_asked_whatever_its_own():
    first, second = read(entry(2, [], [2, 1]), entry(1, [(2, "b")], [1]), documents=2)
    assert dict(first.quotes) == {1: "b"}
    assert dict(second.quotes) == {}
    assert "list[int]" in first.reason


@pytest.mark.parametrize(
    ("entries", "documents", "message"),
    [
        ([], 1, "document 1 of 1 left out"),
        ([entry(1)], 2, "document 2 of 2 left out"),
        ([entry(1), entry(1)], 1, "document 1 is judged twice"),
        ([entry(17)], 6, "document 17 is unknown: there are 6"),
        ([entry(0)], 1, "document 0 is unknown"),
        ([entry(1.0)], 1, "document 1.0 is not a whole number"),
        ([entry(True)], 1, "document True is not a whole number"),
        ([entry(1, [(1, "q")], [])], 1, "document 1: nugget 2 of 2 left out"),
        ([entry(1, [(1, "q"), (1, "r")], [2])], 1, "document 1: nugget 1 is answered twice"),
        ([entry(1, [(1, "q")], [1, 2])], 1, "document 1: nugget 1 is answered twice"),
        ([entry(1, [], [1, 2, 2])], 1, "document 1: nugget 2 is answered twice"),
        ([entry(1, [(3, "q")], [1, 2])], 1, "document 1: nugget 3 is unknown: there are 2"),
        ([entry(1, [(1, " ")], [2])], 1, "document 1: the quote for nugget 1 is empty"),
        ([entry(1, reason="")], 1, "document 1: reason is empty"),
    ],
)
def test_a_reply_that_is_wrong_in_one_place_is_an_error(entries, documents, message):
    with pytest.raises(ReplyError, match=message):
        read(*entries, documents=documents)


def test_statements_are_read_strictly():
    assert read_nuggets({"summary": "", "nuggets": [" a\n b ", "c"]}) == ("a b", "c")
    assert read_sub_questions({"reasoning": "", "sub_questions": ["a?"]}) == ("a?",)
    assert read_closed_book_answer({"answer": "x\ny"}) == "x\ny"
    for wrong in ([], [""], ["a", "A"], ["x" * (LONGEST_STATEMENT + 1)], [str(n) for n in range(21)]):
        with pytest.raises(ReplyError):
            read_nuggets({"summary": "", "nuggets": wrong})
    with pytest.raises(ReplyError):
        read_closed_book_answer({"answer": " \n"})


def test_schemas_are_closed_and_put_reasons_first():
    def check(schema):
        if schema["type"] == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
            for part in schema["properties"].values():
                check(part)
        elif schema["type"] == "array":
            check(schema["items"])

    support = support_schema(20, 5)
    for schema in (*SCHEMAS.values(), support):
        check(schema)
    document = list(support["properties"]["documents"]["items"]["properties"])
    assert document.index("reason") < document.index("supported")
    assert next(iter(SCHEMAS["sub_questions"]["properties"])) == "reasoning"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(1)], r"at documents: 1 entries, at least 2 are asked for"),
        ([entry(1), entry(2), entry(2)], r"at documents: 3 entries, at most 2 are asked for"),
        ([entry(1), entry(3)], r"at documents\[1\].document: 3 is not one of \[1, 2\]"),
        ([entry(1), entry(2, [(4, "q")], [])], r"nugget: 4 is not one of \[1, 2\]"),
        ([entry(1), entry(2, [], [1, 2, 2])], r"unsupported: 3 entries, at most 2 are asked for"),
    ],
)
def test_a_model_that_is_held_to_the_schema_can_name_only_what_it_was_asked_about(entries, message):
    schema = support_schema(2, 2)
    assert read_object(json.dumps({"documents": [entry(2), entry(1)]}), schema)
    with pytest.raises(MalformedReply, match=message):
        read_object(json.dumps({"documents": entries}), schema)
