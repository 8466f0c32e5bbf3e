from __future__ import annotations

from pathlib import Path

import pytest

from freshstack_dagster.corpus import build, workers
from freshstack_dagster.corpus.build import build_corpus, resolve_commits
from freshstack_dagster.corpus.workers import cut
from freshstack_dagster.settings import Repository, Topic
from freshstack_dagster_tests.corpus.repositories import Made


def pdf(text: str) -> bytes:
    """A PDF of one page that shows a line of text."""
    content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    out, offsets = b"%PDF-1.4\n%\xff\xff\n", []
    for number, one in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(out)
    out += b"xref\n0 5\n0000000000 65535 f \n" + table
    return out + b"trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def test_a_pdf_is_read_as_text() -> None:
    pytest.importorskip("pypdfium2")
    cuts = cut("docs/a.PDF", pdf("Weirs hold water back"), 2048)
    assert (cuts.outcome, cuts.language, cuts.encoding) == ("text", "pdf", None)
    assert cuts.detail == "offsets are of the text read from the PDF"
    assert cuts.columns[8] == ["Weirs hold water back"]


@pytest.mark.parametrize(("data", "why"), [(pdf(""), "no text in it"), (b"%PDF-1.4\nbroken", "PDF: ")])
def test_a_pdf_without_text_stays_binary_and_says_why(data: bytes, why: str) -> None:
    pytest.importorskip("pypdfium2")
    cuts = cut("a.pdf", data, 2048)
    assert (cuts.outcome, cuts.columns[8]) == ("binary", [])
    assert why in cuts.detail


def test_without_the_reader_it_is_binary_and_installing_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pypdfium2")
    made = Made(tmp_path / "made.git")
    made.commit("2024-10-10T00:00:00+00:00", {"a.pdf": pdf("Weirs"), "b.md": b"text"})
    topic = Topic(name="made", title="Made", repositories=(Repository(name="local/made", path=made.path),))
    commits = resolve_commits(topic, "2024-10", tmp_path)

    def outcomes() -> list[str]:
        return build_corpus(topic, commits, tmp_path, tmp_path / "cache").files["outcome"].to_list()

    with monkeypatch.context() as without:
        for module in (build, workers):
            without.setattr(module, "pdf_reader", lambda: None)
        assert outcomes() == ["binary", "chunked"]
    assert outcomes() == ["text", "chunked"]
