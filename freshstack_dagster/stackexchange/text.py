"""HTML of a post to plain text that a person and a retriever can read: code, lists, links' text and entities kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"[ \t\n\r\f\xa0]+")
_LANGUAGE = re.compile(r"\blang(?:uage)?-([\w.+#-]+)")
_PLACEHOLDER_ALTS = frozenset({"", "enter image description here", "image description", "enter code here"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "center", "dd", "details", "div", "dl", "dt"),
        *("fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr"),
        *("html", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead"),
        *("tr", "ul"),
    }
)
# Blocks that begin on a new line, with no blank one before.
_CLOSE = frozenset({"li", "tr", "dt", "dd", "tbody", "thead", "tfoot"})
_UNSEEN = frozenset({"head", "script", "style", "template", "noscript", "iframe", "object", "svg"})
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


def html_to_text(html: str) -> str:
    """The text of an HTML fragment, Markdown-like.

    Code blocks come fenced (with their language where the markup names it) and unchanged inside, inline code in
    backticks, list items with `- ` or their number, quotes with `> `, headings with `#`, table cells parted by ` | `,
    images as their description. Links leave their text. Entities are decoded, other space is collapsed, blocks are
    parted by one blank line. Any input gives text; nothing raises.
    """
    if not html or html.isspace():
        return ""
    if "<" not in html and "&" not in html:
        return _SPACE.sub(" ", html).strip()
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser(html).body
    return "" if body is None else _Writer().write(body)


@dataclass
class _List:
    ordered: bool
    number: int


@dataclass
class _Writer:
    """Walks the tree without recursion, as posts nest as deep as their authors like."""

    lines: list[str] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)  # one a quote or list item that we are in
    first_prefix: str | None = None  # the bullet, until its item's first line is written
    lists: list[_List] = field(default_factory=list)
    gap: bool = False  # a blank line is due before the next block
    tight: bool = False  # ... unless the next block is a list item

    def write(self, root: Any) -> str:
        stack: list[tuple[Any, bool]] = [(root, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                self._leave(node.tag)
                continue
            if node.is_text_node:
                self._text(_SPACE.sub(" ", node.text_content or ""))
                continue
            tag = node.tag
            if not node.is_element_node or tag in _UNSEEN:
                continue
            if self._enter(node, tag):
                stack.append((node, True))
                children = []
                child = node.first_child
                while child is not None:
                    children.append(child)
                    child = child.next
                stack.extend((child, False) for child in reversed(children))
        self._end_block()
        return "\n".join(self.lines).strip("\n")

    def _text(self, text: str) -> None:
        if text.startswith(" ") and self.inline and self.inline[-1].endswith((" ", "\n")):
            text = text[1:]
        if text:
            self.inline.append(text)

    def _enter(self, node: Any, tag: str) -> bool:
        """Write what comes before the node's children; False if they are written already."""
        if tag in _BLOCKS and self._end_block() and tag not in _CLOSE and not (tag in ("ul", "ol") and self.lists):
            self.gap = True
        if tag == "pre":
            self._code_block(node)
            return False
        if tag in ("code", "tt", "kbd", "samp"):
            self.inline.append(_inline_code(node.text() or "") if tag in ("code", "tt") else node.text() or "")
            return False
        if tag == "br":
            self.inline.append("\n")
        elif tag == "img":
            alt = (node.attributes.get("alt") or "").strip()
            if alt.lower() not in _PLACEHOLDER_ALTS:
                self.inline.append(_SPACE.sub(" ", alt))
        elif tag in ("td", "th"):
            if "".join(self.inline).strip():
                self.inline.append(" | ")
        elif tag in _HEADINGS:
            self.inline.append(_HEADINGS[tag])
        elif tag == "hr":
            self._line("---")
            self.gap = True
        elif tag == "blockquote":
            self._break()
            self.prefixes.append("> ")
        elif tag in ("ul", "ol"):
            start = node.attributes.get("start") or "1"
            self.lists.append(_List(tag == "ol", int(start) if re.fullmatch(r"[0-9]{1,9}", start) else 1))
        elif tag == "li":
            self._begin_item()
        return True

    def _leave(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_block()
        if tag == "blockquote":
            self.prefixes.pop()
            self.gap = True
        elif tag in ("ul", "ol"):
            self.lists.pop()
            self.gap = True
        elif tag == "li":
            if self.first_prefix is not None:  # an empty item keeps its bullet
                self._line("")
            self.prefixes.pop()
            self.gap, self.tight = True, True
        elif tag in ("tr", "dt"):
            self.gap = False
        elif tag in _BLOCKS and tag not in ("body", "html", "tbody", "thead", "tfoot"):
            self.gap = bool(self.lines)

    def _begin_item(self) -> None:
        if self.tight:
            self.gap = False
        within = self.lists[-1] if self.lists else _List(False, 1)
        if self.first_prefix is not None:  # a list that opens an item: its bullet stands alone
            self._line("")
        bullet = f"{within.number}. " if within.ordered else "- "
        within.number += 1
        self._break()
        self.first_prefix = bullet
        self.prefixes.append(" " * len(bullet))

    def _break(self) -> None:
        if self.gap and self.lines:
            self.lines.append("".join(self.prefixes).rstrip())
        self.gap = self.tight = False

    def _line(self, text: str) -> None:
        self._break()
        prefix = "".join(self.prefixes)
        if self.first_prefix is not None:
            prefix = prefix[: -len(self.first_prefix)] + self.first_prefix
            self.first_prefix = None
        self.lines.append((prefix + text).rstrip() if not text else prefix + text)

    def _end_block(self) -> bool:
        """Write the text gathered so far; whether there was any."""
        text = "".join(self.inline)
        self.inline.clear()
        lines = [line.strip(" ") for line in text.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        while lines and not lines[0]:
            lines.pop(0)
        for line in lines:
            self._line(line)
        return bool(lines)

    def _code_block(self, node: Any) -> None:
        code = node.text() or ""
        marks = f"{node.attributes.get('class') or ''} "
        child = node.first_child
        if child is not None and child.tag == "code":
            marks += child.attributes.get("class") or ""
        language = _LANGUAGE.search(marks)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
        self._line(fence + (language[1] if language and language[1] != "none" else ""))
        for line in code.strip("\n").replace("\r\n", "\n").split("\n"):
            self._line(line)
        self._line(fence)
        self.gap = True


def _inline_code(code: str) -> str:
    code = _SPACE.sub(" ", code).strip()
    if not code:
        return ""
    marks = "`" * (1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    space = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{marks}{space}{code}{space}{marks}"
