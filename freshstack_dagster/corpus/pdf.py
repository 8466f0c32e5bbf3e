"""Text of PDF files, with the optional dependency `pdf` (pypdfium2, BSD). Without it a PDF is a binary file.

The reference package reads PDFs too. What a PDF shows has no order of its own, so its text is only as good as the
reader: offsets of such chunks are of the extracted text, and `files.detail` says so. pypdfium2 rather than pypdf: on
eight real files of 0.1 to 4 MB it took 0.01 to 0.6 CPU seconds each, pypdf 0.1 to 11.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version


class NotReadable(Exception):
    """A PDF that gives no text; the message says why."""


@lru_cache(maxsize=1)
def pdf_reader() -> str | None:
    """The reader that is installed, with its version; None if there is none."""
    try:
        return f"pypdfium2 {version('pypdfium2')}"
    except PackageNotFoundError:
        return None


def is_pdf(path: str, data: bytes) -> bool:
    """Whether a file is a PDF by name and content."""
    return path.lower().endswith(".pdf") and data.startswith(b"%PDF-")


def pdf_text(data: bytes) -> str:
    """The pages' text, with a blank line between pages. Raises NotReadable."""
    import pypdfium2

    pages = []
    try:
        with pypdfium2.PdfDocument(data) as document:
            for page in document:
                pages.append(page.get_textpage().get_text_bounded().replace("\r\n", "\n").strip())
                page.close()
    except (pypdfium2.PdfiumError, ValueError, UnicodeError) as error:
        raise NotReadable(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error
    # Broken fonts give halves of characters, which no encoding has.
    text = "\n\n".join(pages).encode("utf-8", "replace").decode("utf-8")
    if not text.strip():
        raise NotReadable("no text in it, perhaps only pictures")
    return text
