"""The chunker: what always holds, the public cases, and the cuts that the reference makes too."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus import Chunk, chunk_file
from freshstack_dagster.corpus import chunk as chunker
from freshstack_dagster.corpus.chunk import ROOM_FLOOR, ChunkedFile, chunk_as_text, chunk_document
from freshstack_dagster.corpus.languages import language_of

LIMITS = [-1, 0, 1, 2, 7, 16, 40, 100, 2048]
PATHS = [
    "a.py",
    "owner/name/docs/模型.md",
    "b_.ts",
    "x/++",
    "c.txt",
    "d.xml",
    "e.yaml",
    "f.html",
    "g.go",
    "h.json",
    "\udcff.rs",
]


@cache
def real_tokenizer() -> Any:
    """An independent implementation of cl100k_base."""
    return pytest.importorskip("bpe_openai").get_encoding("cl100k_base")


def real_tokens(path: str, text: str) -> int:
    readable = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return len(real_tokenizer().encode(f"{readable}\n\n{text}", disallowed_special=()))


def check(path: str, data: bytes, limit: int, file: ChunkedFile) -> None:
    """Everything that holds of any file's chunks."""
    extracted = "extracted" in file.detail
    head = real_tokens(path, "")
    room = max(max(1, limit) - head, min(ROOM_FLOOR, max(1, limit)))
    assert file.head_range[0] <= head <= file.head_range[1]
    position = 0
    for chunk in file.chunks:
        assert chunk.text.strip()
        assert position <= chunk.start_byte < chunk.end_byte
        position = chunk.end_byte
        assert chunk.tokens == real_tokens(path, chunk.text)
        assert chunk.tokens - head <= room or len(chunk.text) == 1
    if file.encoding is None or extracted:
        return
    text = data.decode(file.encoding)
    gaps, char = [], 0
    for chunk in file.chunks:
        assert data[chunk.start_byte : chunk.end_byte].decode(file.encoding) == chunk.text
        assert text[chunk.start_char : chunk.end_char] == chunk.text
        assert chunk.start_line == text.count("\n", 0, chunk.start_char) + 1
        assert chunk.end_line == text.count("\n", 0, chunk.end_char - 1) + 1
        gaps.append(text[char : chunk.start_char])
        char = chunk.end_char
    gaps.append(text[char:])
    assert not "".join(gaps).removeprefix("\ufeff").strip()


# -- what always holds -------------------------------------------------------------------------------------------------

WORDS = "a foo 1 23 é 字 😀 ' _ - // ( ) { } [ ] < > \" # = : ; . , ` def return class /* */ <a> </a> if: * ```"
BLANKS = " |  |\n|\n\n|\n\n\n|\r|\r\n|\t|\t\t|\u00a0|\u2028|\x0b|\x1c|\x85|\ufeff|\u3000|\u0301|\x00"
FRAGMENTS = st.sampled_from([*WORDS.split(" "), *BLANKS.split("|"), "<|endoftext|>"])
TEXTS = st.lists(FRAGMENTS, max_size=300).map("".join)
ENCODINGS = st.sampled_from(
    ["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "shift_jis", "gb18030"]
)
BYTES = st.binary(max_size=400) | st.builds(lambda text, encoding: text.encode(encoding, "ignore"), TEXTS, ENCODINGS)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), BYTES, st.sampled_from(LIMITS), st.booleans())
@example("a.py", b"", 10, True)
@example("c.txt", b"\xef\xbb\xbf\xef\xbb\xbf\n x", 10, True)
@example("c.txt", "\ufeff x y".encode("utf-16-be"), 1, True)
@example("c.txt", "😀".encode() * 50, 1, False)
@example("a.py", b"\n\n    x = 1\n", 9, True)
def test_any_bytes_at_any_limit(path: str, data: bytes, limit: int, by_grammar: bool) -> None:
    file = chunk_document(path, data, max_tokens=limit) if by_grammar else chunk_as_text(path, data, max_tokens=limit)
    check(path, data, limit, file)
    if by_grammar:
        assert chunk_file(path, data, max_tokens=limit) == file.chunks
    else:
        assert file.outcome not in ("chunked",)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, st.sampled_from([20, 60, 150]), st.data())
def test_cuts_are_the_same_for_every_head_in_the_range(text: str, limit: int, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    first = chunk_document(path, text.encode(), max_tokens=limit)
    head = data.draw(st.integers(first.head_range[0], min(first.head_range[1], limit + 9)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunker, "head_tokens", lambda _: head)
        second = chunk_document(path, text.encode(), max_tokens=limit)
    assert [(c.start_byte, c.end_byte) for c in second.chunks] == [(c.start_byte, c.end_byte) for c in first.chunks]
    difference = head - real_tokens(path, "")
    assert [c.tokens for c in second.chunks] == [c.tokens + difference for c in first.chunks]
    assert second.head_range[0] <= head <= second.head_range[1]


def test_a_small_file_moves_freely() -> None:
    low, high = chunk_document("a.py", b"x = 1\n").head_range
    assert low == 0
    assert high >= 2000


# -- the public cases --------------------------------------------------------------------------------------------------


def test_case_6_a_docstring_longer_than_the_limit() -> None:
    words = " ".join(f"word{i}" for i in range(900))
    data = f'import os\n\n"""{words}"""\n\n\ndef f():\n    return 1\n'.encode()
    file = chunk_document("c.py", data, max_tokens=300)
    check("c.py", data, 300, file)
    assert len({(c.start_byte, c.end_byte) for c in file.chunks}) == len(file.chunks) > 5
    assert file.chunks[-1].text.endswith("return 1")


def test_case_7_names_outside_ascii_stay_apart() -> None:
    data = "# 标题\n\n正文。\n".encode()
    assert [c.text for c in chunk_file("docs/模型.md", data)] == [data.decode()]
    assert chunk_file("docs/模型.md", data)[0].end_byte == len(data) > chunk_file("docs/数据.md", data)[0].end_char


FILES_THE_REFERENCE_LOSES = {
    "a.cpp": "int f{i}(int x) {{ return x + {i}; }}\n",
    "a.cs": "class C{i} {{ int F() {{ return {i}; }} }}\n",
    "a.rst": "Title {i}\n=========\n\nSome text about {i}.\n\n",
    "a.jsx": "export const A{i} = () => <div>{{{i}}}</div>;\n",
    "a.sql": "CREATE TABLE t{i} (id INT, name TEXT);\n",
    "a.proto": "message M{i} {{ int32 a = 1; }}\n",
    "a.bat": "echo line {i}\r\n",
    "a.po": '#: src/a.py:{i}\nmsgid "text {i}"\nmsgstr "Text {i}"\n\n',
    "Dockerfile": "RUN echo {i} && apt-get update\n",
    "Makefile": "target{i}:\n\techo {i}\n\n",
}


@pytest.mark.parametrize("path", FILES_THE_REFERENCE_LOSES)
def test_case_8_no_language_is_lost(path: str) -> None:
    data = "".join(FILES_THE_REFERENCE_LOSES[path].format(i=i) for i in range(120)).encode()
    if path == "a.proto":
        data = b'syntax = "proto3";\n' + data
    file = chunk_document(path, data, max_tokens=200)
    check(path, data, 200, file)
    assert len(file.chunks) > 3
    assert file.language == language_of(path)
    assert file.outcome == ("text" if path == "a.bat" else "chunked"), file.detail
    small = chunk_document(path, data[:60])
    assert (small.outcome, len(small.chunks)) == ("chunked", 1)


def test_case_8_a_grammar_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise LookupError("no such grammar")

    monkeypatch.setattr(chunker, "parser_of", missing)
    data = b"def f():\n    return 1\n\n" * 100
    file = chunk_document("a.py", data, max_tokens=100)
    check("a.py", data, 100, file)
    assert file.outcome == "text"
    assert "python cannot be had" in file.detail


def test_a_file_that_does_not_parse_is_cut_as_text() -> None:
    data = b") } ] ( { [ @@ \n\n" * 200
    file = chunk_document("a.py", data, max_tokens=60)
    check("a.py", data, 60, file)
    assert file.outcome == "text"
    assert "does not parse as python" in file.detail


def test_case_11_only_blanks() -> None:
    for data in (b"  \n", b"", b"\xef\xbb\xbf\n", "\u3000\n".encode()):
        file = chunk_document("a.txt", data)
        assert (file.outcome, file.chunks) == ("empty", [])


@pytest.mark.parametrize("limit", [4, 12, 30])
@pytest.mark.parametrize(
    "text",
    [
        "Die größte Überraschung war, daß die Straßenbahn über Füße und Bäche fuhr. " * 8,
        "👩‍👩‍👧‍👦 family 🇩🇪 flag 👍🏽 thumbs. " * 10,
        "chunk chunk",
        "句子一。句子二！句子三？" * 30,
    ],
)
def test_case_12_small_limits(text: str, limit: int) -> None:
    data = text.encode()
    file = chunk_document("a.txt", data, max_tokens=limit)
    check("a.txt", data, limit, file)
    assert file.chunks


def generated(kind: str) -> tuple[str, bytes]:
    if kind == "coordinator.pb.go":
        literal = "".join(
            f"\t0x{i % 256:02x}, 0x{i * 7 % 256:02x}, 0x{i * 13 % 256:02x}, 0x{i * 31 % 256:02x},\n"
            for i in range(9000)
        )
        return kind, f"package coordinator\n\nvar file_desc = []byte{{\n{literal}}}\n".encode()
    if kind == "drawing.svg":
        paths = "".join(f'<path d="M{i} {i * 3 % 701}L{i * 7 % 997}.{i % 89} {i}Z"/>' for i in range(12500))
        return kind, f"<svg>{paths}</svg>".encode()
    return kind, (
        "!function(){" + "".join(f"var a{i}=function(b,c){{return b+c*{i}}};" for i in range(26000)) + "}();"
    ).encode()


@pytest.mark.parametrize("kind", ["coordinator.pb.go", "drawing.svg", "bundle.min.js"])
def test_case_13_generated_files_take_seconds(kind: str) -> None:
    path, data = generated(kind)
    began = time.thread_time()
    file = chunk_document(path, data)
    assert time.thread_time() - began < 15
    assert file.outcome == "chunked", file.detail
    assert len(file.chunks) > 40
    assert (
        b"".join(data[c.start_byte : c.end_byte] for c in file.chunks).split() == data.split() or kind != "drawing.svg"
    )


DEPTH = 100_000  # several seconds in all; less would not be the case
DEEP = {
    "a.json": b"[" * DEPTH + b"]" * DEPTH,
    "a.md": b">" * DEPTH + b" x\n" + b"y " * 3000,
    "b.md": b"\n".join(b"  " * i + b"- x" for i in range(700)),
    "a.yaml": b"- " * DEPTH + b"x",
    "b.yaml": b"\n".join(b" " * i + b"a:" for i in range(700)),
    "a.txt": b"(" * DEPTH,
    "a.ipynb": b"[" * DEPTH,
    "b.txt": b"".join(b"\n" * i + b"line" for i in range(1, 300)),
}


ALSO_DEEP = {
    "a.py": b"x = " + b"(" * DEPTH + b"1" + b")" * DEPTH,
    "a.c": b"int main() {" + b"{" * DEPTH + b"}" * DEPTH + b"}",
    "a.js": b"a(" * DEPTH + b")" * DEPTH,
    "a.tsx": b"<a>" * DEPTH + b"</a>" * DEPTH,
}


@pytest.mark.parametrize("path", [*DEEP, *(pytest.param(path, marks=pytest.mark.slow) for path in ALSO_DEEP)])
def test_deep_nests_neither_recurse_nor_crash(path: str) -> None:
    data = {**DEEP, **ALSO_DEEP}[path]
    file = chunk_document(path, data)
    assert file.chunks
    assert max(c.tokens for c in file.chunks) <= 2048
    assert sum(len(c.text.strip()) for c in file.chunks) >= len(data.replace(b" ", b"").replace(b"\n", b""))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["a.html", "a.xml", "a.rst"])
def test_a_parse_that_takes_long_is_stopped(path: str) -> None:
    data = b"*a **b " * DEPTH if path == "a.rst" else b"<a>" * DEPTH + b"</a>" * DEPTH
    began = time.thread_time()
    file = chunk_document(path, data)
    assert time.thread_time() - began < 25
    assert file.outcome == "text"


# -- encodings and outcomes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "shift_jis"])
def test_offsets_are_of_the_bytes_as_stored(encoding: str) -> None:
    line = (
        "日本語の文章です。これは試験のための文です。\r\n"
        if encoding == "shift_jis"
        else "Größe und Maß, naïve café.\r\n"
    )
    data = (line * 60).encode(encoding)
    file = chunk_document("a.txt", data, max_tokens=100)
    check("a.txt", data, 100, file)
    assert len(file.chunks) > 5
    assert "".join(c.text for c in file.chunks).replace("\r\n", "") == (line * 60).replace("\r\n", "")


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        (b"%PDF-1.7\n", "binary"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "lfs_pointer"),
        (b"\n \t", "empty"),
        (b"x", "chunked"),
    ],
)
def test_outcomes(data: bytes, outcome: str) -> None:
    file = chunk_document("a.bin", data)
    assert file.outcome == outcome
    assert bool(file.chunks) == (outcome == "chunked")


def test_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunker, "MAX_BYTES", 10)
    file = chunk_document("a.txt", b"x" * 11)
    assert (file.outcome, file.detail) == ("too_large", "11 bytes, over 10")


def test_the_reason_of_a_fallback_stands_in_the_detail() -> None:
    file = chunk_as_text("a.py", b"x = 1\n", detail="the grammar crashed")
    assert (file.outcome, file.detail) == ("text", "the grammar crashed")
    assert [c.text for c in file.chunks] == ["x = 1\n"]


def test_carriage_returns_survive() -> None:
    data = b"a = 1\r\n\r\nb = 2\rc = 3\n"
    assert [c.text for c in chunk_file("a.py", data)] == [data.decode()]


def test_leading_blank_lines_are_no_part_of_a_chunk_but_indentation_is() -> None:
    (chunk,) = chunk_file("a.txt", b"\n\n   x\n")
    assert chunk == Chunk(2, 7, 2, 7, 3, 3, real_tokens("a.txt", "   x\n"), "   x\n")


# -- notebooks ---------------------------------------------------------------------------------------------------------


def test_a_notebook_is_chunked_as_what_its_author_wrote() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"], "id": "same"},
        {
            "cell_type": "code",
            "source": "from transformers import pipeline\n!pip install x\n%pip install y",
            "id": "same",
        },
    ]
    data = json.dumps({"nbformat": 4, "cells": cells}).encode()
    file = chunk_document("a.ipynb", data)
    assert (file.outcome, file.language, file.encoding) == ("chunked", "python", "utf-8")
    assert "offsets are of the text extracted" in file.detail
    (chunk,) = file.chunks
    assert "from transformers import pipeline\n!pip install x\n%pip install y" in chunk.text
    assert chunk.tokens == real_tokens("a.ipynb", chunk.text)


def test_a_notebook_that_is_not_json_is_cut_as_text() -> None:
    file = chunk_document("a.ipynb", b'{"cells": [')
    assert (file.outcome, [c.text for c in file.chunks]) == ("text", ['{"cells": ['])
    assert "not a notebook: not JSON" in file.detail
    assert chunk_document("a.ipynb", b'{"cells": []}').outcome == "empty"


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["cells", "worksheets", "cell_type", "source", "input", "metadata", "language", "level"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_a_notebook_or_text(value: Any) -> None:
    data = json.dumps(value).encode()
    file = chunk_document("n.ipynb", data, max_tokens=50)
    assert file.outcome in ("chunked", "text", "empty")
    assert file.outcome == "empty" or file.chunks
    if file.outcome != "empty":
        check("n.ipynb", data, 50, file)


# -- the cuts of the reference -----------------------------------------------------------------------------------------

# Sources made up for this test, and the spans that the reference package 0.0.6 gives for them at 200 tokens.
SOURCES = {
    "owner/name/a.py": '"""Module."""\n\nimport os\n\n\n'
    + "".join(
        f'class Case{i}:\n    """Case number {i}."""\n\n'
        + "".join(
            f"    def method_{i}_{j}(self, value: int) -> int:\n        # Adds {j}.\n        return value + {i * j}\n\n"
            for j in range(i % 5 + 1)
        )
        + "\n"
        for i in range(14)
    ),
    "owner/name/b.md": "# Guide\n\nIntroduction.\n\n"
    + "".join(
        f"## Part {i}\n\n"
        f"Some words about part {i}, with `code_{i}` and a [link](https://example.org/{i}).\n\n"
        f"```bash\nrun --part {i}\n```\n\n" + "".join(f"- item {j} of {i}\n" for j in range(i)) + "\n"
        for i in range(12)
    ),
    "owner/name/c.ts": 'import { a } from "./a";\n\n'
    + "".join(
        f"export function handle{i}(input: string): string {{\n  if (input.length > {i}) {{\n"
        f"    return input.slice({i});\n  }}\n  return `${{input}}-{i}`;\n}}\n\n"
        for i in range(25)
    ),
    "owner/name/d.txt": "".join(
        f"Paragraph {i} has a few words in it, and then a few more.\nIts second line, too.\n" + ("\n" * (i % 4))
        for i in range(40)
    ),
    "owner/name/e.php": "<?php\n\nnamespace App;\n\nclass Service\n{\n"
    + "".join(
        f"    /** Step {i}. */\n    public function step{i}(array $in): array\n    {{\n"
        f"        return array_merge($in, ['k{i}' => {i}]);\n    }}\n\n"
        for i in range(20)
    )
    + "}\n",
    "owner/name/f.yaml": "services:\n"
    + "".join(
        f'  service{i}:\n    image: repo/image:{i}\n    ports:\n      - "{8000 + i}:80"\n'
        f"    environment:\n      NAME: service-{i}\n"
        for i in range(30)
    ),
}

REFERENCE = {
    "owner/name/a.py": [
        (0, 371),
        (374, 678),
        (681, 1074),
        (1077, 1561),
        (1564, 1908),
        (1911, 2216),
        (2219, 2614),
        (2617, 3102),
        (3105, 3457),
        (3460, 3771),
        (3774, 4176),
    ],
    "owner/name/b.md": [
        (0, 268),
        (268, 568),
        (568, 739),
        (739, 924),
        (924, 1123),
        (1123, 1336),
        (1336, 1563),
        (1563, 1804),
        (1804, 2074),
        (2074, 2360),
    ],
    "owner/name/c.ts": [
        (0, 420),
        (422, 816),
        (818, 1212),
        (1214, 1616),
        (1618, 2024),
        (2026, 2432),
        (2434, 2840),
        (2842, 3248),
        (3250, 3384),
    ],
    "owner/name/d.txt": [(0, 632), (636, 1274), (1278, 1918), (1922, 2562), (2566, 3210)],
    "owner/name/e.php": [(0, 423), (428, 891), (897, 1278), (1283, 1761), (1767, 2160), (2165, 2520)],
    "owner/name/f.yaml": [
        (0, 425),
        (428, 841),
        (844, 1263),
        (1266, 1691),
        (1694, 2119),
        (2122, 2547),
        (2550, 2975),
        (2978, 3190),
    ],
}


@pytest.mark.parametrize("path", SOURCES)
def test_cuts_are_the_references(path: str) -> None:
    data = SOURCES[path].encode()
    file = chunk_document(path, data, max_tokens=200)
    check(path, data, 200, file)
    assert [(c.start_byte, c.end_byte) for c in file.chunks] == REFERENCE[path]
