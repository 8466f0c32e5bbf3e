"""The text of a Jupyter notebook, of any nbformat from 1 on: what a person wrote, in order.

The layout is the one that Jupyter's own "export as script" has for Python (`# In[3]:` before a code cell, Markdown as
comments), because the published collections were made through it; here the code stays as it was written, magics too.
Outputs, attachments, raw cells and media embedded as base64 are left out. Cell ids play no part.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from freshstack_dagster.corpus.languages import notebook_language

DEFAULT_LANGUAGE = "python"  # notebooks of the first formats name none, and they were IPython's

_EMBEDDED_MEDIA = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=]{64,}")
_COMMENT = {
    language: prefix
    for prefix, languages in {
        "//": "typescript javascript tsx csharp fsharp java kotlin scala rust go cpp c swift dart groovy d php zig",
        "--": "sql haskell lua elm ada vhdl",
        "%": "matlab latex erlang",
        ";": "clojure scheme racket commonlisp elisp",
    }.items()
    for language in languages.split()
}


class NotANotebook(ValueError):
    """The text is no notebook; says why."""


@dataclass(frozen=True, slots=True)
class Notebook:
    """Text and language of a notebook, and how many cells gave text."""

    text: str
    language: str
    cells: int


def read_notebook(text: str) -> Notebook:
    """Extract the text of a notebook from its JSON.

    Raises NotANotebook when it is not JSON, or has neither `cells` nor `worksheets`.
    """
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotANotebook(f"not JSON ({type(error).__name__})") from error
    cells = _cells(notebook)
    language = _language(notebook, cells)
    comment = _COMMENT.get(language, "#")
    parts: list[str] = []
    for cell in cells:
        part = _cell_text(cell, comment, jupytext=language == "python")
        if part:
            parts.append(part)
    if not parts:
        return Notebook("", language, 0)
    head = "#!/usr/bin/env python\n# coding: utf-8\n\n" if language == "python" else ""
    joined = (head + "\n\n".join(parts) + "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Notebook(joined, language, len(parts))


def _cells(notebook: Any) -> list[dict[str, Any]]:
    if not isinstance(notebook, dict):
        raise NotANotebook("JSON, but no object")
    if isinstance(notebook.get("cells"), list):  # nbformat 4, and 1
        found = notebook["cells"]
    elif isinstance(notebook.get("worksheets"), list):  # nbformat 2 and 3
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        found = [cell for sheet in sheets if isinstance(sheet.get("cells"), list) for cell in sheet["cells"]]
    else:
        raise NotANotebook("JSON, but without cells")
    return [cell for cell in found if isinstance(cell, dict)]


def _language(notebook: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    metadata = notebook.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for section, key in (("language_info", "name"), ("kernelspec", "language"), ("kernelspec", "name")):
        part = metadata.get(section)
        name = part.get(key) if isinstance(part, dict) else None
        if isinstance(name, str) and notebook_language(name):
            return notebook_language(name) or DEFAULT_LANGUAGE
    for cell in cells:  # nbformat 2 and 3 say it in each code cell
        if isinstance(cell.get("language"), str) and notebook_language(cell["language"]):
            return notebook_language(cell["language"]) or DEFAULT_LANGUAGE
    return DEFAULT_LANGUAGE


def _cell_text(cell: dict[str, Any], comment: str, jupytext: bool) -> str:
    kind = cell.get("cell_type")
    source = _joined(cell.get("source", cell.get("input", cell.get("code"))))
    if not source.strip() or kind == "raw":
        return ""
    source = _EMBEDDED_MEDIA.sub(r"\1", source)
    if kind == "code":
        if not jupytext:
            return source
        count = cell.get("execution_count", cell.get("prompt_number"))
        return f"# In[{count if isinstance(count, int) else ' '}]:\n\n\n{source}"
    if kind == "heading":
        level = cell.get("level")
        source = "#" * (level if isinstance(level, int) and 0 < level < 7 else 1) + " " + source
    return "\n".join(f"{comment} {line}" for line in source.split("\n"))


def _joined(source: Any) -> str:
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""
