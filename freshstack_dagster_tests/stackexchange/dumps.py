"""Dumps made for tests, and the plain reading that every way of reading must equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lxml import etree

HEAD = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n'


def row(post_id: int, kind: int = 1, *, text: str = "<p>text</p>", **attributes: object) -> str:
    """One row as the dumps write it: attributes in their order, line breaks as references."""
    values: dict[str, object] = {"Id": post_id, "PostTypeId": kind}
    for name in ("AcceptedAnswerId", "ParentId"):
        if name in attributes:
            values[name] = attributes.pop(name)
    values |= {"CreationDate": attributes.pop("CreationDate", "2023-05-14T00:15:22.253"), "Score": "3"}
    if kind == 1:
        values["ViewCount"] = 10
    values["Body"] = text
    if kind == 1:
        values |= {"Title": f"Title {post_id}", "Tags": "|langchain|python|"}
    values |= attributes
    written = " ".join(f"{name}={_quoted(str(value))}" for name, value in values.items() if value is not None)
    return f"  <row {written} />"


def _quoted(value: str) -> str:
    escaped = value.replace("\n", "\0").replace('"', "\1")
    return quoteattr(escaped).replace("\0", "&#xA;").replace("\1", "&quot;")


def write_dump(path: Path, rows: Iterable[str], *, end: str = "\n</posts>") -> Path:
    """Write rows as a `Posts.xml`."""
    path.write_text(HEAD + "\n".join(rows) + end, encoding="utf-8", newline="")
    return path


def pack(path: Path, members: Mapping[str, Path], filters: list[dict] | None = None) -> Path:
    """Pack files into a `.7z`."""
    import py7zr

    with py7zr.SevenZipFile(path, "w", filters=filters) as archive:
        for name, file in members.items():
            archive.write(file, name)
    return path


def plain_reading(path: Path) -> dict[str, tuple[dict[str, str], dict[str, str] | None]]:
    """Every question that names an accepted answer, with that answer if it is there, by lxml on the whole file."""
    posts = {element.get("Id"): dict(element.attrib) for element in etree.parse(str(path)).getroot().iter("row")}
    return {
        post_id: (
            post,
            answer if (answer := posts.get(post["AcceptedAnswerId"], {})).get("PostTypeId") == "2" else None,
        )
        for post_id, post in posts.items()
        if post["PostTypeId"] == "1" and "AcceptedAnswerId" in post
    }
