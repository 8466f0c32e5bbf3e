"""Decoding: what is text, in which encoding, and the way back to the blob."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus.decode import NotText, decode


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"plain", "utf-8", "plain"),
        ("é".encode(), "utf-8", "é"),
        (codecs.BOM_UTF8 + b"x", "utf-8", "\ufeffx"),
        ("é字".encode("utf-16"), "utf-16-le", "\ufeffé字"),
        (codecs.BOM_UTF16_BE + "é".encode("utf-16-be"), "utf-16-be", "\ufeffé"),
        ("x".encode("utf-32"), "utf-32-le", "\ufeffx"),
    ],
)
def test_encodings(data: bytes, encoding: str, text: str) -> None:
    document = decode(data)
    assert (document.encoding, document.text) == (encoding, text)
    assert document.utf8 == text.encode()


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        ("Быстрая коричневая лиса прыгает через ленивую собаку. " * 5, ["cp1251", "koi8_r"]),
        ("日本語の文章です。これは試験のための文です。\n" * 5, ["shift_jis", "euc_jp"]),
        ("中文文本测试内容。\n" * 5, ["gbk"]),
        ("Größe und Maß, naïve café.\n", ["cp1252"]),
        ("© 2004 Jürgen Müller. All rights reserved.\n" * 20, ["latin-1", "cp1252"]),
    ],
)
def test_other_encodings_are_detected(text: str, encodings: list[str]) -> None:
    for encoding in encodings:
        assert decode(text.encode(encoding)).text == text


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (b"", "empty"),
        (b"\n\t ", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "lfs_pointer"),
        (b"GIF89a\0\0", "binary"),
        (b"%PDF-1.4\n", "binary"),
        (bytes(range(1, 32)) + b"\xff\xfe\x80", "binary"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8\x00", "binary"),
    ],
)
def test_what_is_no_text(data: bytes, outcome: str) -> None:
    with pytest.raises(NotText) as no:
        decode(data)
    assert no.value.outcome == outcome


@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=60), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_positions_lead_back_to_the_blob(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    try:
        document = decode(data)
    except NotText:
        return
    starts = [len(document.text[:i].encode()) for i in range(len(document.text) + 1)]
    for char, (raw, found) in enumerate(document.positions(starts)):
        assert found == char
        assert data[raw:].decode(document.encoding) == document.text[char:]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_text_that_encodes_back_or_not_text(data: bytes) -> None:
    try:
        document = decode(data)
    except NotText:
        return
    assert document.text.encode(document.encoding) == data
