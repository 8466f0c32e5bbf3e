"""A skeleton shows the grammar the same blocks and elements as the text, and so gives the same cuts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus import chunk as chunker
from freshstack_dagster.corpus.chunk import chunk_document
from freshstack_dagster.corpus.languages import parser_of
from freshstack_dagster.corpus.skeleton import Skeleton, skeleton_of

Shape = list[tuple[str, int, int]]

MARKDOWN = [
    *("foo", "bar baz", "é ü", "字", "$x->y();", "}", "(", "&amp;", "![i](x)", "`c`", "_em_", "%", "title: x"),
    *("# ", "## h", "- ", "* ", "1. ", "12) ", "> ", "- [ ] t", "```", "```php", "~~~", "---", "===", "***", "+++"),
    *("<div>", "</div>", '<a name="x"></a>', "<pre>", "</pre>", "</script", "<!-- ", " -->", "<?", "?>"),
    *("|", "a|b", "-|-", "|---|", "[a]: ", "](x)", "'t'", "/u", ":", "\\", "]:", "---\n"),
    *(" ", "  ", "    ", "\t", "\n", "\n", "\n\n", "\n\n", "\r\n", "\n> ", "\n- ", "\n  ", "\n    "),
]
XML = [
    *("<a>", "</a>", "<b/>", '<p d="', '"/>', '">', "'", "&lt;", "<!-- ", " -->", "<![CDATA[", "]]>", "<?x ", "?>"),
    *('="', "é" * 20, "M10 20" * 8, "--", "- " * 20, "\n", " ", "=", "text", '<?xml version="1.0"?>', "<!DOCTYPE a>"),
]


def shape(root: Any, skeleton: Skeleton | None, containers: frozenset[str] | None) -> Shape:
    """Nodes by type and place, down to the children of the containers."""
    found: Shape = []
    nodes = [root]
    while nodes:
        node = nodes.pop()
        start, end = node.start_byte, node.end_byte
        found.append((node.type, *((skeleton.original(start), skeleton.original(end)) if skeleton else (start, end))))
        if containers is None or node.type in containers:
            nodes.extend(node.children)
    return sorted(found)


def check(grammar: str, data: bytes) -> None:
    skeleton = skeleton_of(grammar, data)
    if skeleton is None:
        return
    root = parser_of(grammar).parse(skeleton.utf8).root_node
    if root.has_error:  # then the text itself is parsed
        return
    plain = parser_of(grammar).parse(data).root_node
    assert shape(root, skeleton, skeleton.containers) == shape(plain, None, skeleton.containers)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(MARKDOWN), max_size=40).map("".join))
@example("```php\n$x->y();```\n\nfoo\n")
@example("~~~\nfoo~~~\n\nbar\n")
@example("---\r\n\r\né ü}`c`\n\n---\n\t# \n\n\n   foo\n")
@example('[foo\nbar]:\n/url\n"title"\n\n[foo]\n')
@example("a|b\n-|-\nfoo|bar\nfoo\n\nbar\n")
@example("<pre>\n\nfoo </pre>\nbar\n\n# h\n")
@example("- foo\nbar\n  baz\n\n      code\n      more\n# h\n")
@example("    code\nfoo\n      bar\n")
def test_markdown_has_the_same_blocks(text: str) -> None:
    check("markdown", text.encode())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(XML), max_size=40).map("".join))
@example(f'<svg><path d="{"M1 2" * 40}" e="{"é" * 40}"/><g f="{"x" * 40}">t</g></svg>')
@example(f'<a><!-- b="{"x" * 40}-->" --></a>')
def test_xml_has_the_same_elements(text: str) -> None:
    check("xml", text.encode())


def cuts(path: str, data: bytes, limit: int) -> tuple[str, list[tuple[int, int]], tuple[int, int]]:
    file = chunk_document(path, data, max_tokens=limit)
    return file.outcome, [(one.start_byte, one.end_byte) for one in file.chunks], file.head_range


def cuts_without(path: str, data: bytes, limit: int) -> tuple[str, list[tuple[int, int]], tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunker, "skeleton_of", lambda *_: None)
        return cuts(path, data, limit)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(MARKDOWN), max_size=120).map("".join), st.sampled_from([12, 20, 60]), st.sampled_from("mx")
)
def test_cuts_are_those_of_the_text_itself(text: str, limit: int, kind: str) -> None:
    path = "a.md" if kind == "m" else "a.xml"
    data = text.encode() if kind == "m" else f'<a b="{text.replace(chr(34), "")}"><c>{text}</c></a>'.encode()
    assume(len(data) > limit)
    assert cuts(path, data, limit) == cuts_without(path, data, limit)


def test_a_paragraph_over_the_limit_is_divided_where_the_text_says(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("# Title\n\n" + "One sentence, with a comma; and more. " * 60 + "\n\n## Next\n\nfoo\n").encode()
    parsed: list[bytes] = []
    real = chunker._parse
    monkeypatch.setattr(chunker, "_parse", lambda utf8, *names: (parsed.append(utf8), real(utf8, *names))[1])
    found = cuts("a.md", data, 100)
    assert [one == data for one in parsed] == [False, True]
    assert found == cuts_without("a.md", data, 100)


def test_most_of_plain_text_and_long_values_is_not_parsed() -> None:
    text = b"# Title\n\n" + b"Some words, and a few more.\nA second line.\n\n" * 50
    skeleton = skeleton_of("markdown", text)
    assert skeleton is not None
    assert len(skeleton.utf8) == len(text)
    assert skeleton.utf8.count(b"x") > 0.9 * len(text)
    picture = b'<svg><path d="' + b"M10 20 " * 1000 + b'"/></svg>'
    skeleton = skeleton_of("xml", picture)
    assert skeleton is not None
    assert skeleton.utf8 == b'<svg><path d="M"/></svg>'
    assert [skeleton.original(offset) for offset in (0, 14, 15, len(skeleton.utf8))] == [0, 14, 7014, len(picture)]
