from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freshstack_dagster.language_models import ReplyError
from freshstack_dagster.language_models.replies import MalformedReply, read_object
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt
from freshstack_dagster_tests.language_models.support import (
    SCHEMA,
    answer,
    judge,
    make_models,
    make_request,
    make_role,
    read,
)

CALLS = 300
CONCURRENCY = 8
SCRIPT = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
from freshstack_dagster_tests.language_models import support
url, cache, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
models = support.make_models(cache)
role = support.make_role(SimpleNamespace(url=url, openai_url=url + "/v1"), concurrency={CONCURRENCY})
outcomes = support.judge(models.role("judge", role), range(count))
assert support.assert_right_or_error(outcomes) == count
"""


def _misbehave(number: int, _prompt: Prompt) -> str | None:
    return {3: "invalid_json", 5: "http_500", 11: "left_out"}.get(number % 23)


def _answered(cache: Path) -> set[str]:
    """The requests, by id, whose right reply lies in the cache."""
    found = set()
    for path in (cache / "replies").glob("??/*.json"):
        entry = json.loads(path.read_text())
        try:
            read(read_object(entry["reply"]["text"], SCHEMA))
        except (MalformedReply, ReplyError):
            continue
        found.add(entry["about"]["request"])
    return found


@pytest.mark.slow
def test_ten_kills_in_three_hundred_calls_repeat_no_answered_call(tmp_path: Path, project: Path) -> None:
    chance = random.Random(22)
    kills: list[tuple[float, set[str]]] = []
    with MisbehavingServer(answer, schedule=_misbehave, latency=0.12) as server:
        command = [sys.executable, "-c", SCRIPT, server.url, str(tmp_path), str(CALLS)]
        for number in range(10):
            goal = len(server.served) + chance.randrange(4, CALLS // 12)
            process = subprocess.Popen(command, cwd=project)
            deadline = time.monotonic() + 120
            while len(server.served) < goal and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            assert process.poll() is None, f"run {number} ended before it was killed"
            time.sleep(chance.random() * 0.12)
            killed_at = time.time()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills.append((killed_at, _answered(tmp_path)))
        subprocess.run(command, cwd=project, check=True, timeout=300)

        ids = {make_request(number).user: make_request(number).id for number in range(CALLS)}
        # What had its answer when a run was killed is never asked for again.
        repeated = [
            one.prompt.user
            for killed_at, answered in kills
            for one in server.served
            if one.came_at > killed_at and ids[one.prompt.user] in answered
        ]
        assert repeated == []
        # The server answers some calls that the killed run does not live to store: at most those in flight, each time.
        right = [one.prompt.user for one in server.served if one.fault is None and one.answered_at]
        assert set(right) == set(ids)
        assert len(right) - len(set(right)) <= CONCURRENCY * len(kills)
        on_the_way = sum(
            one.answered_at is not None and one.came_at <= killed_at <= one.answered_at
            for killed_at, _ in kills
            for one in server.served
        )
        # Beside those that the server was still writing, about one a kill: what lay between socket and file.
        assert len(right) - len(set(right)) - on_the_way <= 2 * len(kills)

        # And the replies that all the runs left behind are the whole judging.
        served = len(server.served)
        outcomes = judge(make_models(tmp_path).role("judge", make_role(server, concurrency=CONCURRENCY)), range(CALLS))
        assert all(outcome.kind == "ok" for outcome in outcomes)
        assert len(server.served) == served
        print(f"{served} calls for {CALLS}, {len(right) - len(set(right))} repeated, {on_the_way} in flight at a kill")
