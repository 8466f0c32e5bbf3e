"""The CACM collection of the shared inputs, read as Anserini reads it."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path

import lxml.html
import polars as pl

DOCUMENTS = 3204
_TOPIC = re.compile(r"<DOC>\s*<DOCNO>\s*(\d+)\s*</DOCNO>(.*?)</DOC>", re.DOTALL)


def documents(archive: Path) -> pl.DataFrame:
    """Chunks of the archive: one a file, its text as an HTML parser gives it (the `<` of a formula is no tag)."""
    rows = []
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                continue
            text = lxml.html.fromstring(file.read()).text_content()
            rows.append((Path(member.name).stem, hashlib.sha256(text.encode()).hexdigest(), text))
    return pl.DataFrame(rows, schema=["doc_id", "content_hash", "text"], orient="row")


def queries(topics: Path) -> pl.DataFrame:
    """The topics as query variant `question`."""
    found = _TOPIC.findall(topics.read_text())
    return pl.DataFrame([(n, "question", t) for n, t in found], schema=["question_id", "variant", "text"], orient="row")


def qrels(path: Path) -> dict[str, dict[str, int]]:
    """Qrels as pytrec_eval takes them."""
    judged: dict[str, dict[str, int]] = {}
    for line in path.read_text().split("\n"):
        if line.strip():
            question, _, document, relevance = line.split()
            judged.setdefault(question, {})[document] = int(relevance)
    return judged
