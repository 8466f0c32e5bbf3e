from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import ApiSettings, QuestionFilter, QuotaReached, load_api

WANTED = QuestionFilter(frozenset({"langchain"}), datetime(2023, 1, 1), datetime(2024, 11, 1, tzinfo=UTC))
START = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp())


def question(number: int, **changes) -> dict:
    return {
        "question_id": number,
        "title": "It&#39;s <b>",
        "body": f"<p>body {number}</p>",
        "tags": ["langchain", "python"],
        "creation_date": START + number // 2,  # two a second, so that pages break within a second
        "score": 2,
        "view_count": 5,
        "accepted_answer_id": number + 1000,
        "link": f"https://stackoverflow.com/questions/{number}/slug",
        "content_license": "CC BY-SA 4.0",
        **changes,
    }


class Site:
    """A small Stack Exchange API: pages questions by date and gives answers by id."""

    def __init__(self, questions: list[dict], quota: int = 1000) -> None:
        self.questions = questions
        self.quota = quota
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.before: Callable[[int], tuple[int, dict | bytes] | None] = lambda call: None
        self.extra: Callable[[int], dict] = lambda call: {}

    def reply(self, path: str, query: dict[str, str]) -> tuple[int, dict | bytes]:
        self.calls.append((path, query))
        special = self.before(len(self.calls))
        if special is not None:
            return special
        self.quota -= 1
        if path == "/2.3/questions":
            found = [
                item
                for item in self.questions
                if int(query["fromdate"]) <= item["creation_date"] <= int(query["todate"])
                and query["tagged"] in (*item["tags"], *item.get("synonyms", []))
            ]
            size, page = int(query["pagesize"]), int(query["page"])
            items, more = found[(page - 1) * size : page * size], len(found) > page * size
        else:
            ids = path.rsplit("/", 1)[1].split(";")
            items = [
                {
                    "answer_id": int(i),
                    "body": f"<p>answer {i}</p>",
                    "creation_date": START,
                    "content_license": "CC BY-SA 4.0",
                }
                for i in ids
                if int(i) != 1003
            ]
            more = False
        return 200, {"items": items, "has_more": more, "quota_remaining": self.quota, **self.extra(len(self.calls))}


@pytest.fixture
def serve():
    servers = []

    def start(site: Site) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                status, reply = site.reply(
                    parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()}
                )
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/2.3"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def fetch(serve, tmp_path):
    def load(site: Site, wanted: QuestionFilter = WANTED, **settings):
        slept: list[float] = []
        url = settings.pop("base_url", None) or serve(site)
        given = load_api(ApiSettings(tmp_path, base_url=url, **settings), wanted, sleep=slept.append)
        return given, slept

    return load


def test_every_question_comes_once_with_its_answer(fetch, tmp_path):
    site = Site([question(i) for i in range(1, 48)])
    given, slept = fetch(site, page_size=3)
    assert given.questions.height == 46
    assert given.ledger.rows() == [("3", "answer missing", "the API has no answer 1003")]
    assert not slept
    first = given.questions.rows_by_key("question_id", named=True, unique=True)["1"]
    assert (first["title"], first["body_text"], first["answer_text"]) == ("It's <b>", "body 1", "answer 1001")
    assert first["asked_at"] == datetime(2023, 1, 1, tzinfo=UTC)
    assert all(int(query.get("page", 1)) <= 25 for _, query in site.calls)
    assert all(query["site"] == "stackoverflow" and query["filter"] == "withbody" for _, query in site.calls)
    assert not list(tmp_path.iterdir())  # the fetch is whole: the next one asks anew


def test_many_questions_in_one_second(fetch):
    given, _ = fetch(Site([question(i, creation_date=START) for i in range(1, 11)]), page_size=3)
    assert given.questions.height == 9


def test_ledger(fetch):
    site = Site(
        [
            question(1, accepted_answer_id=None),
            question(5, closed_date=START, closed_reason="Duplicate"),
            question(7, closed_date=START, closed_reason="Needs details or clarity"),
            question(9, score=-1),
            question(11, tags=["langchain-old"], synonyms=["langchain"]),
            question(13, body="x" * 500),
            question(15),
        ]
    )
    wanted = QuestionFilter(WANTED.tags, WANTED.asked_from, WANTED.asked_before, 0, True, True, 100)
    given, _ = fetch(site, wanted)
    assert dict(given.ledger.select("post_id", "reason").iter_rows()) == {
        "1": "no accepted answer",
        "5": "duplicate",
        "7": "closed",
        "9": "score",
        "13": "too long",
    }
    assert given.questions["question_id"].to_list() == ["15"]
    assert given.counts == {"questions": 7, "other tag": 1}


def test_case_21_backoff_is_waited_for_before_the_next_call(fetch):
    site = Site([question(i) for i in range(1, 9)])
    site.extra = lambda call: {"backoff": 10} if call == 1 else {}
    _, slept = fetch(site)
    assert len(slept) == 1
    assert 9.5 < slept[0] <= 10


def test_case_21_no_quota_is_a_clean_stop_that_goes_on_without_repeating_a_call(fetch, serve, tmp_path):
    site = Site([question(i) for i in range(1, 30)], quota=4)
    url = serve(site)
    with pytest.raises(
        QuotaReached, match=r"^Stack Exchange API: the day's quota is used up; 4 replies are kept in [^\n]*$"
    ):
        fetch(site, page_size=3, base_url=url)
    assert len(site.calls) == 4
    site.quota = 1000
    given, _ = fetch(site, page_size=3, base_url=url)
    assert given.questions.height == 28
    asked = [(path, tuple(sorted(query.items()))) for path, query in site.calls]
    assert len(asked) == len(set(asked))
    assert not list(tmp_path.iterdir())


def test_a_last_call_that_leaves_no_quota_is_enough(fetch):
    given, _ = fetch(Site([question(1)], quota=2))
    assert given.questions.height == 1


def test_throttling_errors_and_rubbish_are_retried(fetch):
    site = Site([question(1)])
    throttled = {
        "error_id": 502,
        "error_name": "throttle_violation",
        "error_message": "more requests available in 7 seconds",
    }
    troubles = {1: (400, throttled), 2: (503, b"<html>"), 3: (500, {"error_id": 500}), 4: (429, {})}
    site.before = troubles.get
    given, slept = fetch(site)
    assert given.questions.height == 1
    assert [round(seconds) for seconds in slept] == [7, 2, 4, 8]


def test_a_long_throttle_stops_cleanly(fetch):
    site = Site([question(1)])
    site.before = lambda call: (400, {"error_id": 502, "error_message": "more requests available in 80000 seconds"})
    with pytest.raises(QuotaReached, match="throttled for 80000 seconds"):
        fetch(site)
    assert len(site.calls) == 1


def test_what_the_api_refuses_is_one_clear_line(fetch):
    site = Site([])
    site.before = lambda call: (400, {"error_id": 400, "error_name": "bad_parameter", "error_message": "No site"})
    with pytest.raises(SourceError, match=r"^Stack Exchange API refuses questions: bad_parameter: No site$"):
        fetch(site)
    assert len(site.calls) == 1
    with pytest.raises(SourceError, match="give at least one tag"):
        fetch(site, QuestionFilter(frozenset()))


def test_no_server_is_one_clear_line_and_keys_stay_secret(fetch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(
        SourceError, match=r"^Stack Exchange API: questions failed 2 times, last ConnectError; [^\n]*$"
    ) as error:
        fetch(Site([]), base_url="http://127.0.0.1:9/2.3", tries=2, key="s3cret", access_token="t0ken")
    site = Site([question(1)], quota=1)
    with pytest.raises(QuotaReached) as stopped:
        fetch(site, key="s3cret", access_token="t0ken")
    assert site.calls[0][1]["key"] == "s3cret"
    httpx_lines = "\n".join(record.getMessage() for record in caplog.records if record.name == "httpx")
    assert "key=***" in httpx_lines
    kept = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    settings = repr(ApiSettings(tmp_path, key="s3cret", access_token="t0ken"))
    for text in (httpx_lines, str(error.value), str(stopped.value), kept, settings):
        assert "s3cret" not in text and "t0ken" not in text
