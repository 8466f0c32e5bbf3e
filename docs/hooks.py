"""The start page of the site, made from the README while the site is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the start page to the site."""
    files.append(File.generated(config, "index.md", content=_start()))
    return files


def _start() -> str:
    """The README with its links into `docs/` made relative and those to source files made plain."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\(((?!http|images/|#)[^)]+\.(?:py|yaml))\)", r"\1", text)
