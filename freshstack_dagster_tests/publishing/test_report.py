from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from lxml import etree
from lxml import html as lxml_html

from freshstack_dagster.drift.correlation import ranking_correlation, system_drift
from freshstack_dagster.drift.decomposition import compare, skipped
from freshstack_dagster.drift.freshness import question_freshness
from freshstack_dagster.drift.lineage import trace_lineage
from freshstack_dagster.drift.repositories import repository_shift
from freshstack_dagster.drift.support import support_drift
from freshstack_dagster.errors import LakeError
from freshstack_dagster.evaluation.qrels import build_qrels
from freshstack_dagster.evaluation.results import retrieval_results
from freshstack_dagster.evaluation.significance import compare_systems
from freshstack_dagster.judging.support import nugget_hash
from freshstack_dagster.lake import Lake
from freshstack_dagster.publishing import plots
from freshstack_dagster.publishing.html import Markup, rows_table, table
from freshstack_dagster.publishing.report import is_current, render_report, report_inputs, write_report
from freshstack_dagster.settings import Topic
from freshstack_dagster.tables import TABLES

TOPIC = Topic(name="tiny", title="Tiny <topic>", repositories=("owner/lib", "owner/docs"))
NASTY = 'Why does <script>alert(1)</script> & "this" fail?'


def _fill(table: str, rows: list[dict]) -> pl.DataFrame:
    """Rows with plausible values for what they leave out."""
    defaults = {pl.String: "x", pl.Int64: 0, pl.Float64: 0.0, pl.Boolean: False, pl.List: []}
    columns = TABLES[table].columns
    full = [{n: r.get(n, None if c.nullable else defaults[type(c.dtype)]) for n, c in columns.items()} for r in rows]
    return TABLES[table].conform(pl.DataFrame(full, schema=TABLES[table].schema))


def _month(number: int, months: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Chunks, judgments and runs: each month one more chunk moves to docs, and in the last a nugget has no support."""
    chunks, judgments, runs = [], [], []
    for at in range(12):
        repository = "docs" if at < number else "lib"
        text = " ".join(f"word{at}x{i}" for i in range(80)) + ("\n.. deprecated:: 1.0\n" if at == 3 else "")
        doc_id = f"{repository}/page{at}.md_0_{len(text)}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        chunks.append({"doc_id": doc_id, "repository": repository, "path": f"page{at}.md", "end_byte": len(text)})
        chunks[-1] |= {"content_hash": digest, "text": text, "url": f"https://example.org/{doc_id}?a=1&b=2"}
        for nugget in range(2):
            for question in range(6):
                lost = question == 0 and nugget == 0 and number == months - 1
                supported = at in (question, question + 1 + nugget) and not lost
                judgments.append(
                    {"question_id": f"q{question}", "nugget_id": f"q{question}_{nugget}", "doc_id": doc_id}
                )
                judgments[-1] |= {"nugget_hash": nugget_hash(f"Fact {nugget} of {question}")}
                judgments[-1] |= {"content_hash": digest, "verdict": "supported" if supported else "unsupported"}
                judgments[-1] |= {"judge": "j", "judge_kind": "llm", "quote": text[:40] if supported else None}
        for question in range(6):
            for system, score in (("a", 12 - abs(at - question)), ("b", (at * 7 + question) % 12)):
                runs.append({"question_id": f"q{question}", "variant": "question", "retriever": system})
                runs[-1] |= {"doc_id": doc_id, "rank": 1, "score": float(score)}
    return _fill("chunks", chunks), _fill("judgments", judgments), _fill("runs", runs)


def build(lake: Lake, snapshots: list[str]) -> None:
    """A lake with everything that the report shows."""
    questions = [
        {"question_id": f"q{i}", "title": NASTY if i == 0 else f"Question {i}", "url": f"https://example.org/q/{i}"}
        | {"asked_at": datetime(2024, 1 + i, 1, tzinfo=UTC), "answer_edited_at": datetime(2025, 1, 1, tzinfo=UTC)}
        for i in range(6)
    ]
    nuggets = [
        {"nugget_id": f"q{i}_{n}", "question_id": f"q{i}", "position": n, "text": f"Fact {n} of {i}"}
        for i in range(6)
        for n in range(2)
    ]
    topic = {"questions": _fill("questions", questions), "nuggets": _fill("nuggets", nuggets)}
    chunks, judged, results = {}, {}, {}
    for number, month in enumerate(snapshots):
        chunks[month], judged[month], runs = _month(number, len(snapshots))
        qrels, outcomes = build_qrels(judged[month], topic["nuggets"], topic["questions"])
        results[month] = retrieval_results(runs, qrels, judged[month])
        statistics = _fill("statistics", [{"statistic": "docs", "value": 12.0, "description": "chunks"}])
        pooled = (
            results[month]
            .rename({"system": "retriever"})
            .with_columns(variant=pl.lit("question"), setting=pl.lit("inference"))
        )
        for table_name, frame in {
            "chunks": chunks[month],
            "judgments": judged[month],
            "question_outcomes": outcomes,
            "retrieval_results": results[month],
            "comparisons": compare_systems(results[month], rounds=100),
            "statistics": statistics,
            "pooling_results": pooled.select(list(TABLES["pooling_results"].columns)),
        }.items():
            lake.write(table_name, frame, topic="tiny", snapshot=month)
    first = snapshots[0]
    later = {month: chunks[month] for month in snapshots[1:]}
    topic["support_drift"] = support_drift(topic["nuggets"], judged, baseline=first)
    topic["repository_shift"] = repository_shift(chunks, judged, baseline=first)
    topic["chunk_lineage"], topic["lineage_summary"] = trace_lineage(chunks[first], later, judged[first])
    topic["ranking_correlation"] = ranking_correlation(results)
    topic["system_drift"] = system_drift(results, baseline=first)
    topic["question_freshness"] = question_freshness(topic["questions"], judged, chunks, topic["support_drift"])
    last = snapshots[-1]
    effects = [
        compare("corpus", f"{first} to {last}", results[first], results[last]),
        skipped("judge", "j to k", "none"),
    ]
    topic["decomposition"] = pl.concat(effects)
    for table_name, frame in topic.items():
        lake.write(table_name, frame, topic="tiny")


@pytest.fixture(scope="module", params=[2, 5])
def page(request, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of two and of five snapshots."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    build(lake, [f"2024-{8 + i:02d}" for i in range(request.param)])
    return render_report(lake, TOPIC)


def test_every_plot_has_a_title_a_text_and_numbers_below(page: str):
    document = lxml_html.document_fromstring(page)
    figures = document.findall(".//figure")
    assert len(figures) >= 8
    for section in document.findall(".//section"):
        tags = [element.tag for element in section if element.tag in ("figure", "div")]
        # Numbers stand somewhere below each plot.
        assert not tags or tags[-1] == "div", section.get("id")
    for each in figures:
        assert each.find("figcaption").text
        assert each.find(".//svg").get("role") == "img"
        assert each.find(".//desc").text


def test_it_needs_no_script_and_no_network_and_is_small(page: str):
    document = lxml_html.document_fromstring(page)
    assert not document.findall(".//script")
    assert not document.xpath("//*[@src] | //link | //iframe | //object")
    assert not re.search(r"@import|url\(", page)
    assert not document.xpath("//@*[starts-with(name(), 'on')]")
    assert len(page) < 300_000
    assert "@media print" in page
    assert not [target for target in document.xpath("//nav//a/@href") if document.get_element_by_id(target[1:]) is None]


def test_texts_are_escaped(page: str):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Tiny &lt;topic&gt;" in page


def test_the_case_study_shows_the_lost_nugget_and_links_to_the_commit(page: str):
    document = lxml_html.document_fromstring(page)
    case = document.get_element_by_id("case-q0")
    text = case.text_content()
    assert "Nugget 1 lost its support." in text
    assert "No chunk supports it." in text
    assert "https://example.org/lib/page0.md_0_" in " ".join(case.xpath(".//a/@href"))
    assert "migrated" in text
    assert len(document.find_class("case")) == 1


def test_a_reader_finds_what_was_not_measured(page: str):
    assert "Not measured" in page
    assert "j to k" in page


def test_more_than_two_snapshots_make_series(tmp_path: Path):
    lake = Lake(tmp_path)
    build(lake, ["2024-08", "2024-09", "2024-10", "2024-11"])
    titles = lxml_html.document_fromstring(render_report(lake, TOPIC)).xpath("//figcaption/text()")
    for wanted in (
        "Nuggets, by snapshot",
        "Supporting chunks, by repository and month",
        "tau-b against 2024-08, by month",
    ):
        assert wanted in titles


def test_agreement_answers_and_contamination_are_shown_where_there_are_any(page: str, tmp_path: Path):
    for section in ("agreement", "contamination", "answers"):
        assert f'id="{section}"' not in page
    lake = Lake(tmp_path)
    build(lake, ["2024-08", "2024-09"])
    pair = {"statistic": "cohen", "judge_a": "openai:a", "judge_b": "anthropic:b", "judge_kinds": "llm", "pairs": 90}
    pair |= {"agreement": 0.9, "agreement_low": 0.85, "agreement_high": 0.95, "kappa": None, "base_rate": 0.07}
    lake.write("agreement", _fill("agreement", [pair]), topic="tiny", snapshot="2024-08")
    divided = [{"question_id": "q0", "nugget_id": "q0_0", "doc_id": f"d{number}"} for number in range(3)]
    lake.write("disagreements", _fill("disagreements", divided), topic="tiny", snapshot="2024-08")
    counts = {"questions": 3, "nuggets": 8, "stated": 2, "share": 0.25, "share_low": 0.071, "share_high": 0.591}
    stated = [{"asked": asked, **counts, "judge_kind": "llm"} for asked in ("2024-01", "all")]
    lake.write("contamination", _fill("contamination", stated), topic="tiny")
    scored = [
        {"system": system, "measure": "nugget_recall", "question_id": question, "value": value, "judge_kind": "human"}
        for system, value in (("one", 0.25), ("two", 0.5))
        for question in ("q0", "q1", "all")
    ]
    lake.write("answer_results", _fill("answer_results", scored), topic="tiny")
    document = lxml_html.document_fromstring(render_report(lake, TOPIC))
    agreement = document.get_element_by_id("agreement").text_content()
    assert "openai:a and anthropic:b" in agreement
    assert "0.900 [0.850, 0.950]" in agreement
    assert "7%" in agreement
    assert "3 in 2024-08" in agreement
    contamination = document.get_element_by_id("contamination").text_content()
    assert "all questions" in contamination
    assert "0.250 [0.071, 0.591]" in contamination
    rows = [
        [cell.text_content() for cell in row.iter("td")]
        for row in document.get_element_by_id("answers").iter("tr")
        if row.find("td") is not None
    ]
    # The best first; the mean is no question.
    assert [row[:3] for row in rows] == [["nugget_recall", "two", "2"], ["nugget_recall", "one", "2"]]
    assert "Judged by: human" in document.get_element_by_id("answers").text_content()


def test_a_report_knows_what_it_was_made_from(tmp_path: Path):
    lake, path = Lake(tmp_path / "lake"), tmp_path / "tiny.html"
    build(lake, ["2024-08", "2024-09"])
    inputs = report_inputs(lake, TOPIC, "1")
    assert not is_current(path, inputs)
    write_report(lake, TOPIC, path, "1")
    assert is_current(path, inputs)
    assert report_inputs(lake, TOPIC, "2") != inputs
    assert report_inputs(lake, TOPIC.model_copy(update={"title": "Other"}), "1") != inputs
    answers = _fill("answer_results", [{"system": "s", "question_id": "all", "measure": "nugget_recall"}])
    lake.write("answer_results", answers, topic="tiny")
    assert not is_current(path, report_inputs(lake, TOPIC, "1"))


def test_unchanged_is_not_written_again(tmp_path: Path):
    lake = Lake(tmp_path / "lake")
    build(lake, ["2024-08", "2024-09"])
    path = tmp_path / "reports" / "tiny.html"
    assert write_report(lake, TOPIC, path)
    assert not write_report(lake, TOPIC, path)


def test_without_a_snapshot_there_is_no_report(tmp_path: Path):
    with pytest.raises(LakeError, match="topic tiny has no snapshot yet"):
        render_report(Lake(tmp_path), TOPIC)


PLOTS = {
    "bars": lambda: plots.bars("A & B", {"x<y": {"2024-10": 3.0, "2025-10": 0.0}}),
    "no bars": lambda: plots.bars("Empty", {}),
    "percent": lambda: plots.bars("Shares", {"lib": {"2024-10": 0.25}}, percent=True),
    "stacked": lambda: plots.stacked("Parts", {"2024-10": {"kept": 3, "lost": 0}, "2025-10": {"kept": 0, "lost": 0}}),
    "slopes": lambda: plots.slopes("Slopes", {"a": [0.1, None, 0.3], "b": [None, None, None]}, ["1", "2", "3"]),
    "lines": lambda: plots.lines("Lines", {str(i): [1.0] * 24 for i in range(12)}, [f"m{i}" for i in range(24)]),
    "no lines": lambda: plots.lines("None", {}, []),
    "intervals": lambda: plots.intervals("Intervals", {"a": (0.5, 0.1, 0.9)}),
    "flows": lambda: plots.flows("Flows", [plots.Flow("a", "b", 3), plots.Flow("a", "gone", 1)]),
    "no flows": lambda: plots.flows("Flows", []),
}  # fmt: skip


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_well_formed_and_stay_in_their_frame(name: str):
    root = etree.fromstring(PLOTS[name]())
    width, height = map(float, root.get("viewBox").split()[2:])
    assert root.findtext("{*}title")
    assert root.find("{*}desc") is not None
    for element in root.iter("{*}rect", "{*}circle", "{*}text"):
        x, y = float(element.get("x", element.get("cx"))), float(element.get("y", element.get("cy")))
        assert -1 <= x <= width + 1
        assert -1 <= y <= height + 1
        assert "nan" not in etree.tostring(element).decode()


def test_tables_round_align_and_say_what_they_leave_out():
    frame = pl.DataFrame(
        {"path": ["a/b"] * 5, "n": [1234] * 5, "x": [-0.0001] * 5, "ok": [True] * 5, "none": [None] * 5}
    )
    shown = table(frame, most=2)
    assert shown.count("<tr>") == 3
    assert "3 more rows are left out." in shown
    assert '<td class="n">1,234</td>' in shown
    assert '<td class="n">0.000</td>' in shown
    assert '<th class="n">n</th>' in shown
    assert "<td>yes</td>" in shown


def test_ids_are_no_figures_and_markup_goes_in_as_it_is():
    shown = rows_table(["question", "2024-10"], [["77690375", "+12.5%"], [Markup("<b>x</b>"), "0.7 [0.1, 0.9]"]])
    assert '<td class="short">77690375</td>' in shown
    assert '<td class="n">+12.5%</td>' in shown
    assert '<td class="n">0.7 [0.1, 0.9]</td>' in shown
    assert "<td><b>x</b></td>" in shown
    assert "2024\u201110" in shown
