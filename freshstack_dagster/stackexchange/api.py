"""Questions from the Stack Exchange API 2.3 (https://api.stackexchange.com/docs), within its manners.

A reply may ask for a pause (`backoff`, seconds), and each key has a number of calls a day (`quota_remaining`). Every
reply is kept in a folder until all of them are there, so a run that stops, for want of quota or otherwise, goes on
where it stood and repeats no call.
"""

from __future__ import annotations

import hashlib
import html
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import questions as reasons
from freshstack_dagster.stackexchange.questions import Question, QuestionFilter, QuestionRows, Questions, as_utc
from freshstack_dagster.stackexchange.text import html_to_text

_SECRETS = re.compile(r"((?:access_token|key)=)[^&\s\"']+")
_AVAILABLE_IN = re.compile(r"available in (\d+) seconds")
_IDS_A_CALL = 100
_LONGEST_PAUSE = 600
_THROTTLED = 502  # the API's own error id, not an HTTP status


class QuotaReached(SourceError):
    """The day's calls are used up; what was fetched is kept and the next run goes on from there."""


@dataclass(frozen=True)
class ApiSettings:
    """How to reach the API. `state_dir` keeps replies until a fetch is whole; `key` raises the daily quota to 10,000.

    `key` and `access_token` never appear in logs, errors or kept replies. `timeout` is in seconds.
    """

    state_dir: str | Path
    site: str = "stackoverflow"
    key: str | None = field(default=None, repr=False)
    access_token: str | None = field(default=None, repr=False)
    base_url: str = "https://api.stackexchange.com/2.3"
    page_size: int = 100
    timeout: float = 30.0
    tries: int = 5


def load_api(
    settings: ApiSettings,
    filter: QuestionFilter,
    *,
    progress: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Questions:
    """Fetch the topic's questions and their accepted answers from the API.

    Needs at least one tag. Questions are asked for tag by tag in the order of their creation, up to `asked_before` or
    the moment of the first call, so that a fetch which goes on later sees the same list. Raises QuotaReached when the
    day's calls are used up (run again later: no call is repeated), SourceError for what the API refuses or when it
    does not answer.
    """
    if not filter.tags:
        raise SourceError("Stack Exchange API: give at least one tag; without one it would fetch a whole site")
    with _Calls(settings, filter, progress, sleep) as calls:
        found = {item["question_id"]: item for tag in sorted(filter.tags) for item in calls.questions(tag)}
        rows = QuestionRows()
        wanted: dict[int, dict[str, Any]] = {}
        for question_id, item in sorted(found.items()):
            rows.count("questions")
            if not filter.wants_tags(item.get("tags", [])):
                rows.count(reasons.OTHER_TAG)  # a synonym: the API gives questions of the tag's master too
                continue
            against = filter.reason_against(asked_at=_moment(item.get("creation_date")))
            if against is None and not item.get("accepted_answer_id"):
                against = (reasons.NO_ACCEPTED_ANSWER, "")
            if against is not None:
                rows.leave_out(str(question_id), against[0], against[1] or None)
            else:
                wanted[question_id] = item
        answers = calls.answers(sorted({item["accepted_answer_id"] for item in wanted.values()}))
        for question_id, item in wanted.items():
            _join(question_id, item, answers.get(item["accepted_answer_id"]), filter, rows)
        calls.forget()
    return rows.tables()


def _join(
    question_id: int, item: dict[str, Any], answer: dict[str, Any] | None, wanted: QuestionFilter, rows: QuestionRows
) -> None:
    if answer is None:
        rows.leave_out(str(question_id), reasons.ANSWER_MISSING, f"the API has no answer {item['accepted_answer_id']}")
        return
    title = " ".join(html.unescape(item.get("title", "")).split())
    body = html_to_text(item.get("body", ""))
    against = wanted.reason_against(
        score=item.get("score"),
        closed="closed_date" in item,
        duplicate="duplicate" in (item.get("closed_reason") or "").lower(),
        characters=len(title) + 1 + len(body),
    )
    if against is not None:
        rows.leave_out(str(question_id), *against)
        return
    licenses = item.get("content_license"), answer.get("content_license")
    rows.add(
        Question(
            question_id=str(question_id),
            title=title,
            body_text=body,
            answer_id=str(answer["answer_id"]),
            answer_text=html_to_text(answer.get("body", "")),
            tags=item.get("tags", []),
            score=item.get("score"),
            view_count=item.get("view_count"),
            asked_at=_moment(item.get("creation_date")),
            answer_edited_at=_moment(answer.get("last_edit_date") or answer.get("creation_date")),
            url=item.get("link"),
            author_url=(item.get("owner") or {}).get("link"),
            answer_author_url=(answer.get("owner") or {}).get("link"),
            license=reasons.joint_license(*licenses),
        )
    )


class _Calls:
    """Calls of one fetch: paced, retried, and each kept by its parameters."""

    def __init__(
        self,
        settings: ApiSettings,
        wanted: QuestionFilter,
        progress: Callable[[str], None] | None,
        sleep: Callable[[float], None],
    ) -> None:
        import httpx

        self._settings = settings
        self._progress = progress
        self._sleep = sleep
        self._wait_until = 0.0
        self._quota: int | None = None
        identity = [settings.base_url, settings.site, sorted(wanted.tags), str(wanted.asked_from)]
        identity.append(str(wanted.asked_before))
        self._folder = Path(settings.state_dir) / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._until = self._fixed_end(wanted.asked_before)
        self._since = 0 if wanted.asked_from is None else int(as_utc(wanted.asked_from).timestamp())
        self._client = httpx.Client(timeout=settings.timeout, headers={"Accept-Encoding": "gzip"})
        self._redaction = _Redaction()

    def __enter__(self) -> _Calls:
        logging.getLogger("httpx").addFilter(self._redaction)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("httpx").removeFilter(self._redaction)
        self._client.close()

    def questions(self, tag: str) -> Iterator[dict[str, Any]]:
        """All questions of a tag. Goes on by creation date, as pages beyond the 25th need a key."""
        since, page = self._since, 1
        while True:
            reply = self._get(
                "questions",
                tagged=tag,
                fromdate=since,
                todate=self._until,
                page=page,
                pagesize=self._settings.page_size,
                sort="creation",
                order="asc",
            )
            yield from reply["items"]
            if not reply.get("has_more") or not reply["items"]:
                return
            last = int(reply["items"][-1]["creation_date"])
            since, page = (last, 1) if last > since else (since, page + 1)

    def answers(self, ids: list[int]) -> dict[int, dict[str, Any]]:
        """The answers with these ids, those that the API still has."""
        found = {}
        for start in range(0, len(ids), _IDS_A_CALL):
            batch = ";".join(map(str, ids[start : start + _IDS_A_CALL]))
            for item in self._get(f"answers/{batch}", pagesize=_IDS_A_CALL)["items"]:
                found[item["answer_id"]] = item
        return found

    def forget(self) -> None:
        """The fetch is whole: the next one asks anew."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fixed_end(self, asked_before: datetime | None) -> int:
        if asked_before is not None:
            return int(as_utc(asked_before).timestamp()) - 1  # todate is inclusive
        kept = self._folder / "until"
        if not kept.exists():
            kept.write_text(str(int(time.time())))
        return int(kept.read_text())

    def _get(self, method: str, **parameters: Any) -> dict[str, Any]:
        parameters = {**parameters, "site": self._settings.site, "filter": "withbody"}
        name = hashlib.sha256(json.dumps([method, parameters], sort_keys=True).encode()).hexdigest()[:24]
        kept = self._folder / f"{name}.json"
        if kept.exists():
            return json.loads(kept.read_text())
        reply = self._call(method, parameters)
        temporary = kept.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(reply))
        os.replace(temporary, kept)
        if self._progress is not None:
            self._progress(f"Stack Exchange API: {method.split('/')[0]}, {self._quota} calls left today")
        return reply

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        import httpx

        secrets = {"key": self._settings.key, "access_token": self._settings.access_token}
        parameters = parameters | {name: value for name, value in secrets.items() if value}
        what = method.split("/")[0]
        trouble = ""
        for attempt in range(self._settings.tries):
            if self._quota is not None and self._quota <= 0:
                raise self._stopped("the day's quota is used up")
            self._pause()
            try:
                response = self._client.get(f"{self._settings.base_url}/{method}", params=parameters)
                reply = response.json()
            except (httpx.HTTPError, ValueError) as error:
                trouble = type(error).__name__
                self._wait(2.0**attempt)
                continue
            if not isinstance(reply, dict):
                trouble = "not an object"
                self._wait(2.0**attempt)
                continue
            if "quota_remaining" in reply:
                self._quota = int(reply["quota_remaining"])
            if "backoff" in reply:
                self._wait(float(reply["backoff"]))
            if response.status_code == 200 and isinstance(reply.get("items"), list):
                return reply
            trouble = f"{reply.get('error_name', response.status_code)}: {reply.get('error_message', '')}".strip()
            if reply.get("error_id") == _THROTTLED:
                pause = _AVAILABLE_IN.search(str(reply.get("error_message")))
                seconds = float(pause[1]) if pause else 2.0**attempt
                if seconds > _LONGEST_PAUSE:
                    raise self._stopped(f"throttled for {seconds:.0f} seconds")
                self._wait(seconds)
            elif response.status_code < 500 and response.status_code != 429:
                raise SourceError(f"Stack Exchange API refuses {what}: {_without_secrets(trouble)}")
            else:
                self._wait(_seconds(response.headers.get("Retry-After"), 2.0**attempt))
        raise SourceError(
            f"Stack Exchange API: {what} failed {self._settings.tries} times, last {_without_secrets(trouble)}; "
            "run again to go on where it stood"
        )

    def _stopped(self, why: str) -> QuotaReached:
        kept = len(list(self._folder.glob("*.json")))
        return QuotaReached(
            f"Stack Exchange API: {why}; {kept} replies are kept in {self._folder}, run again later to go on from there"
        )

    def _wait(self, seconds: float) -> None:
        self._wait_until = max(self._wait_until, time.monotonic() + seconds)

    def _pause(self) -> None:
        seconds = self._wait_until - time.monotonic()
        if seconds > 0:
            self._sleep(seconds)
        self._wait_until = 0.0


class _Redaction(logging.Filter):
    """Takes keys out of the request lines that httpx logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _without_secrets(record.getMessage()), ()
        return True


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(r"\1***", text)


def _moment(seconds: Any) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC)


def _seconds(retry_after: str | None, otherwise: float) -> float:
    """What a Retry-After header asks for, in seconds; it may be a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return otherwise
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return otherwise
    return max(0.0, moment.timestamp() - time.time())
