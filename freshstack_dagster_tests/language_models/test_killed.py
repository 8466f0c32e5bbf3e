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
    ENVIRON,
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
server = SimpleNamespace(url=url, openai_url=url + "/v1")
role = support.make_role(server, "PROVIDER", concurrency={CONCURRENCY})
outcomes = support.judge(models.role("judge", role), range(count))
assert support.assert_right_or_error(outcomes) == count
"""
# Runs first in the client: `read(stream, data)` is called with what each read from the network brought, before the
# client sees it, and `whole(stream, data)` says the number under which the server keeps a response that it completes.
LISTEN = """
import asyncio, os, re, signal, sys
from anyio._backends._asyncio import SocketStream
begun = {}
def whole(stream, data):
    data = begun.pop(stream, b"") + data
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    length = re.search(rb"content-length: (\\d+)", head.lower())
    if length is None or len(body) < int(length[1]):
        begun[stream] = data
        return None
    number = re.search(rb'"id": "(?:chatcmpl-|resp_|msg_)(\\d+)"', body)
    return number and int(number[1])
receive = SocketStream.receive
async def heard(self, *arguments, **named):
    data = await receive(self, *arguments, **named)
    read(self, data)
    return data
SocketStream.receive = heard
"""
# Notes each response in a file, as one write, before the client sees it.
NOTE = f"""{LISTEN}
notes = os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def read(stream, data):
    if (number := whole(stream, data)) is not None:
        os.write(notes, b"%d\\n" % number)
    return number
"""
# And kills the process after the third, as soon as the client lets anything else run.
DIE = f"""{NOTE}
note, seen = read, []
def read(stream, data):
    if note(stream, data) is None:
        return
    seen.append(stream)
    if len(seen) == 3:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
"""


class Misbehaving:
    """A schedule: now and then a fault, but one for each request, so that no request uses up its attempts."""

    def __init__(self) -> None:
        self.spoilt: set[str] = set()

    def __call__(self, number: int, prompt: Prompt) -> str | None:
        fault = {3: "invalid_json", 5: "http_500", 11: "left_out"}.get(number % 23)
        if fault is None or prompt.user in self.spoilt:
            return None
        self.spoilt.add(prompt.user)
        return fault


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


@pytest.mark.parametrize("provider", ["compatible", "responses", "anthropic"])
def test_a_reply_is_stored_before_anything_else_runs(provider: str, tmp_path: Path, project: Path) -> None:
    # A connection that is closed after each response: closing it lets other work run.
    with MisbehavingServer(answer, latency=0.02, keep_alive=False) as server:
        script, notes = SCRIPT.replace("PROVIDER", provider), tmp_path / "notes"
        command = [sys.executable, "-c", DIE + script, server.url, str(tmp_path), "20", str(notes)]
        killed = subprocess.run(command, cwd=project, timeout=60, env={**os.environ, **ENVIRON})
        assert killed.returncode == -signal.SIGKILL
        ids = {make_request(number).user: make_request(number).id for number in range(20)}
        got = {ids[server.served[int(line)].prompt.user] for line in notes.read_text().splitlines()}
        assert 3 <= len(got) < 20
        assert _answered(tmp_path) == got
        first, command[2] = len(server.served), script
        subprocess.run(command, cwd=project, check=True, timeout=60, env={**os.environ, **ENVIRON})
        asked = [ids[one.prompt.user] for one in server.served[first:]]
        assert sorted(asked) == sorted(set(ids.values()) - got)


def test_two_processes_that_ask_the_same_pay_once(tmp_path: Path, project: Path) -> None:
    with MisbehavingServer(answer, latency=0.2) as server:
        command = [sys.executable, "-c", SCRIPT.replace("PROVIDER", "compatible"), server.url, str(tmp_path), "40"]
        running = [subprocess.Popen(command, cwd=project) for _ in range(3)]
        assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
        assert len(server.served) == 40
    assert list((tmp_path / "claims").iterdir()) == []


@pytest.mark.slow
def test_ten_kills_in_three_hundred_calls_repeat_no_answered_call(tmp_path: Path, project: Path) -> None:
    chance = random.Random(22)
    kills: list[tuple[float, set[str], list[int]]] = []
    with MisbehavingServer(answer, schedule=Misbehaving(), latency=0.12) as server:
        script = SCRIPT.replace("PROVIDER", "openai")
        for number in range(10):
            goal = len(server.served) + chance.randrange(4, CALLS // 12)
            notes = tmp_path / f"{number}.notes"
            command = [sys.executable, "-c", NOTE + script, server.url, str(tmp_path), str(CALLS), str(notes)]
            process = subprocess.Popen(command, cwd=project)
            deadline = time.monotonic() + 120
            while len(server.served) < goal and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            assert process.poll() is None, f"run {number} ended before it was killed"
            time.sleep(chance.random() * 0.12)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            got = [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []
            kills.append((time.time(), _answered(tmp_path), got))
        command = [sys.executable, "-c", script, server.url, str(tmp_path), str(CALLS)]
        subprocess.run(command, cwd=project, check=True, timeout=300)

        right = {one.prompt.number for one in server.served if one.fault is None and one.answered_at}
        user = {one.prompt.number: one.prompt.user for one in server.served}
        ids = {make_request(number).user: make_request(number).id for number in range(CALLS)}
        assert {user[number] for number in right} == set(ids)
        repeated, in_hand = [], 0
        for killed_at, stored, got in kills:
            later = {one.prompt.user for one in server.served if one.came_at > killed_at}
            # What was stored when a run was killed is never asked for again.
            repeated += [one for one in later if ids[one] in stored]
            # Nor is what the run had read, but for a reply that it was killed over: the last, read and not yet stored.
            repeated += [user[number] for number in got[:-1] if number in right and user[number] in later]
            in_hand += sum(number in right and user[number] in later for number in got[-1:])
        assert repeated == []
        # From the last byte to the file it is well under a millisecond.
        assert in_hand <= 2
        # So every further call is for an answer that no living process had read, or for one in hand.
        read_by_one = {number for _, _, got in kills for number in got} & right
        assert len({user[number] for number in read_by_one}) >= len(read_by_one) - in_hand

        # And the replies that all the runs left behind are the whole judging.
        served = len(server.served)
        outcomes = judge(make_models(tmp_path).role("judge", make_role(server, concurrency=CONCURRENCY)), range(CALLS))
        assert all(outcome.kind == "ok" for outcome in outcomes)
        assert len(server.served) == served
        unread = len(right) - CALLS - in_hand
        print(
            f"{served} calls for {CALLS}; asked again: {unread} never read by a living run, {in_hand} in hand at a kill"
        )
