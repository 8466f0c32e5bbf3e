from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt
from freshstack_dagster_tests.language_models.support import answer, judge, make_models, make_role

CALLS = 300
# Between the server's last byte and the reply's file there is a moment in which a kill loses it; nobody can know.
MOMENT_SECONDS = 0.25
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
            os.kill(process.pid, signal.SIGKILL)
            killed.append(time.time())
            process.wait()
        subprocess.run(command, cwd=project, check=True, timeout=120)

        # Answered, well before the next kill: must not be asked for again, unless the answer was a bad one.
        repeats = []
        lost = 0
        for one in server.served:
            if one.answered_at is None:
                continue
            later = [
                other for other in server.served if other.prompt.user == one.prompt.user and other.came_at > one.came_at
            ]
            if one.fault is None and later:
                if any(0 <= kill - one.answered_at < MOMENT_SECONDS for kill in killed):
                    lost += 1
                else:
                    repeats.append(one.prompt.user)
            if one.fault is not None:
                # A bad answer is asked for once more, not once more by every run.
                same = [other for other in later if other.fault is None and other.answered_at]
                assert len(same) >= 1
        assert repeats == []
        assert lost <= 8
        assert {one.prompt.user for one in server.served if one.answered_at} == {
            one.prompt.user for one in server.served
        }

        # And the replies that all the runs left behind are the whole judging.
        served = len(server.served)
        outcomes = judge(make_models(tmp_path).role("judge", make_role(server, concurrency=8)), range(CALLS))
        assert all(outcome.kind == "ok" for outcome in outcomes)
        assert len(server.served) == served
