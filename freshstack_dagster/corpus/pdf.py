"""Text of PDF files, with the optional dependency `pdf` (pypdf, BSD). Without it a PDF is a binary file.

The reference package reads PDFs too. What a PDF shows has no order of its own, so its text is only as good as the
reader: offsets of such chunks are of the extracted text, and `files.detail` says so.
"""

from __future__ import annotations

import io
import logging
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version


class NotReadable(Exception):
    """A PDF that gives no text; the message says why."""


@lru_cache(maxsize=1)
def pdf_reader() -> str | None:
    """The reader that is installed, with its version; None if there is none."""
    try:
        return f"pypdf {version('pypdf')}"
    except PackageNotFoundError:
        return None


def is_pdf(path: str, data: bytes) -> bool:
    """Whether a file is a PDF by name and content."""
    return path.lower().endswith(".pdf") and data.startswith(b"%PDF-")


def pdf_text(data: bytes) -> str:
    """The pages' text, with a blank line between pages. Raises NotReadable."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it remarks on every oddity of every file
    try:
        pages = [page.extract_text() for page in PdfReader(io.BytesIO(data)).pages]
    except Exception as error:  # pypdf raises whatever a broken file makes it raise
        raise NotReadable(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error
    # Broken fonts give halves of characters, which no encoding has.
    text = "\n\n".join(page.strip() for page in pages).encode("utf-8", "replace").decode("utf-8")
    if not text.strip():
        raise NotReadable("no text in it, perhaps only pictures")
    return text
