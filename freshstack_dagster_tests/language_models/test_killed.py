from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt, Served
from freshstack_dagster_tests.language_models.support import answer, judge, make_models, make_role

CALLS = 300
# Between the server's last byte and the reply's file there is a moment in which a kill loses the reply.
MOMENT_SECONDS = 0.1
SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from freshstack_dagster_tests.language_models import support
url, cache, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
models = support.make_models(cache)
role = support.make_role(SimpleNamespace(url=url, openai_url=url + "/v1"), concurrency=8)
outcomes = support.judge(models.role("judge", role), range(count))
assert support.assert_right_or_error(outcomes) == count
"""


def _misbehave(number: int, _prompt: Prompt) -> str | None:
    return {3: "invalid_json", 5: "http_500", 11: "left_out"}.get(number % 23)


def _heard(one: Served, killed: list[float], moment: float = MOMENT_SECONDS) -> bool:
    """Whether the answer was out at least `moment` before the process that asked was killed."""
    if one.answered_at is None or one.fault is not None:
        return False
    return not any(one.came_at <= kill < one.answered_at + moment for kill in killed)


@pytest.mark.slow
def test_ten_kills_in_three_hundred_calls_repeat_no_answered_call(tmp_path: Path, project: Path) -> None:
    chance = random.Random(22)
    killed: list[float] = []
    with MisbehavingServer(answer, schedule=_misbehave, latency=0.12) as server:
        command = [sys.executable, "-c", SCRIPT, server.url, str(tmp_path), str(CALLS)]
        for number in range(10):
            goal = len(server.served) + chance.randrange(4, CALLS // 12)
            process = subprocess.Popen(command, cwd=project)
            deadline = time.monotonic() + 60
            while len(server.served) < goal and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            assert process.poll() is None, f"run {number} ended before it was killed"
            time.sleep(chance.random() * 0.12)
            killed.append(time.time())
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(command, cwd=project, check=True, timeout=120)

        repeats = []
        nearly = 0
        for one in server.served:
            later = [
                other for other in server.served if other.prompt.user == one.prompt.user and other.came_at > one.came_at
            ]
            if one.answered_at is None or one.fault is not None:
                # A fault is asked for again, once: not once more by every run.
                assert len([other for other in later if _heard(other, killed)]) <= 1
                continue
            nearly += bool(later) and _heard(one, killed, moment=0.0)
            if later and _heard(one, killed):
                repeats.append(one.prompt.user)
        assert repeats == []
        # And those that were answered in the very moment of a kill are few.
        assert nearly <= 4

        # And the replies that all the runs left behind are the whole judging.
        served = len(server.served)
        outcomes = judge(make_models(tmp_path).role("judge", make_role(server, concurrency=8)), range(CALLS))
        assert all(outcome.kind == "ok" for outcome in outcomes)
        assert len(server.served) == served
