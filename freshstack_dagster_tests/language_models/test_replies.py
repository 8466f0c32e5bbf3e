from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshstack_dagster.language_models.replies import MalformedReply, read_object

SCORE: dict[str, Any] = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 3}},
    "required": ["score"],
    "additionalProperties": False,
}
ANY: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 1}',
        '  {"score": 1}\n',
        '```json\n{"score": 1}\n```',
        '```\n{"score": 1}\n```  ',
        '\ufeff{"score": 1}',
        '```json\r\n{"score": 1}\r\n```',
    ],
)
def test_a_reply_that_is_right_is_read(text: str) -> None:
    assert read_object(text, SCORE) == {"score": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("The passage relates to 3 topics. ##final score: 1", "not JSON"),
        ("I cannot assess this passage.", "not JSON"),
        ('{"score": 12}', "wrong shape at score: 12 is greater"),
        ('{"score": "1"}', "wrong shape at score"),
        ('{"score": true}', "wrong shape at score"),
        ('{"score": null}', "wrong shape"),
        ('{"scores": 1}', "wrong shape"),
        ('{"score": 1, "note": ""}', "wrong shape"),
        ('[{"score": 1}]', "not a JSON object"),
        ('"score"', "not a JSON object"),
        ('{"score": 1, "score": 0}', "key twice: score"),
        ('{"score": NaN}', "NaN"),
        ('{"score": 1', "not JSON"),
        ('{"score": 1}}', "not JSON"),
        ('{"score": 1,}', "not JSON"),
        ("{'score': 1}", "not JSON"),
        ('Sure!\n```json\n{"score": 1}\n```', "not JSON"),
        ('```json\n{"score": 1}\n```\nDone.', "not JSON"),
        ('```json\n{"score": 1}\n```\n```json\n{"score": 0}\n```', "not JSON"),
        ('<think>0</think>{"score": 1}', "not JSON"),
        ('{"score": 1}\n{"score": 0}', "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
    ],
)
def test_a_reply_that_is_not_right_is_an_error(text: str, why: str) -> None:
    with pytest.raises(MalformedReply, match=why) as caught:
        read_object(text, SCORE)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_half_a_surrogate_pair_is_an_error() -> None:
    with pytest.raises(MalformedReply, match="surrogate"):
        read_object('{"a": "\\ud83d"}', ANY)
    assert read_object('{"a": "\\ud83d\\ude00"}', ANY) == {"a": "😀"}


def test_fences_and_braces_inside_a_string_are_text() -> None:
    reason = "uses `list[int]` and\n```python\nx = {}\n```\n"
    assert read_object(json.dumps({"reason": reason}), ANY) == {"reason": reason}
    assert read_object(f"```json\n{json.dumps({'reason': reason})}\n```", ANY) == {"reason": reason}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_every_object_is_read_as_it_was_written(data: dict[str, Any]) -> None:
    assert read_object(json.dumps(data), ANY) == data


@given(st.text(max_size=200))
def test_any_text_is_read_or_is_an_error(text: str) -> None:
    with contextlib.suppress(MalformedReply):
        assert isinstance(read_object(text, ANY), dict)
