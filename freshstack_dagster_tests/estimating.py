"""What an estimate said and what a server then billed: a standing project is built anew with models at a local server.

Run it on any project where a topic's corpus stands:

    python -m freshstack_dagster_tests.estimating ROOT TOPIC SNAPSHOT [OTHER_SNAPSHOT]
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from freshstack_dagster.assets.answers import probe_contamination
from freshstack_dagster.assets.judgments import judge_pools
from freshstack_dagster.assets.nuggets import write_nuggets, write_query_variants
from freshstack_dagster.assets.pools import pool_candidates, retrieve
from freshstack_dagster.corpus.tokens import count_tokens
from freshstack_dagster.estimate import BuildEstimate, estimate_build
from freshstack_dagster.estimate import pilot as pilot_build
from freshstack_dagster.settings import Places, load_topic
from freshstack_dagster_tests.assets.calibration_project import materialize
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt

IN, OUT = 0.25, 2.0
ROLES = ("nuggets", "sub_questions", "closed_book_answer", "judge")
READ = ("questions", "chunks", "commits", "files")
STAGES = (write_nuggets, write_query_variants, probe_contamination, retrieve, pool_candidates, judge_pools)


@dataclass(frozen=True)
class Compared:
    """Dollars that were told for what was left to pay, and those billed for it."""

    what: str
    told: float
    billed: float

    @property
    def error(self) -> float:
        """By what part of the bill the estimate is too high (or, negative, too low)."""
        return self.told / self.billed - 1

    def __str__(self) -> str:
        return f"{self.what:44} told ${self.told:.4f}, billed ${self.billed:.4f}: {self.error:+.1%}"


def reply(prompt: Prompt) -> dict[str, Any]:
    """What a model might say: of the usual length for the task, of no worth."""
    asked = next(iter((prompt.schema or {})["properties"]))
    words = _words(_part(prompt.user, "question"))
    if asked == "summary":
        sentences = re.split(r"(?<=[.!?])\s+|\n+", _part(prompt.user, "answer"))
        facts = list(dict.fromkeys(" ".join(_words(s)[:30]) for s in sentences if len(_words(s)) > 5))[:4]
        return {"summary": " ".join(words[:40]), "nuggets": facts or [" ".join(words[:12])]}
    if asked == "reasoning":
        thirds = [" ".join(words[start : start + 18]) for start in (0, 18, 36)]
        return {"reasoning": " ".join((words * 3)[:110]), "sub_questions": [t for t in thirds if t] or ["what is it"]}
    if asked == "answer":
        return {"answer": " ".join((words * 20)[:200])}
    nuggets = [line.split(". ", 1)[1] for line in _part(prompt.user, "nuggets").split("\n")]
    documents = re.findall(r'<document number="(\d+)">\n(.*?)\n</document>', prompt.user, re.DOTALL)
    return {"documents": [_verdict(int(number), text, nuggets) for number, text in documents]}


def _verdict(number: int, text: str, nuggets: list[str]) -> dict[str, Any]:
    said = _words(text)
    held = set(said)
    found = [
        place for place, nugget in enumerate(nuggets, 1) if len(held & set(_words(nugget))) > 0.7 * len(_words(nugget))
    ]
    return {
        "document": number,
        # One to three sentences, as the prompt asks for.
        "reason": " ".join(said[: 18 + 7 * number % 23]) or "It is empty.",
        "supported": [{"nugget": place, "quote": " ".join(text.split()[:15]) or "-"} for place in found],
        "unsupported": [place for place in range(1, len(nuggets) + 1) if place not in found],
    }


def _part(user: str, tag: str) -> str:
    found = re.search(rf"<{tag}>\n(.*?)\n</{tag}>", user, re.DOTALL)
    return found[1] if found else ""


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]{2,}", text)


def tokens_in(prompt: Prompt) -> int:
    """Tokens in as cl100k_base counts them, and some for the frame of the chat."""
    return count_tokens(prompt.system) + count_tokens(prompt.user) + count_tokens(json.dumps(prompt.schema)) + 12


def four_bytes(prompt: Prompt) -> int:
    """Tokens in by a tokenizer that nobody knows."""
    return len(prompt.user.encode()) // 4 + len(prompt.system.encode()) // 4


def copy_project(source: Path, root: Path, topic: str, server: MisbehavingServer, **settings: Any) -> None:
    """A project with the topic's questions and corpus, whose roles all ask the server."""
    for folder in ("topics", "lake"):
        (root / "data" / folder).mkdir(parents=True, exist_ok=True)
    for table in READ:
        if (place := source / "data" / "lake" / table / f"topic={topic}").is_dir():
            shutil.copytree(place, root / "data" / "lake" / table / f"topic={topic}")
    document = yaml.safe_load((source / "data" / "topics" / f"{topic}.yaml").read_text())
    role = {"provider": "compatible", "model": "model", "base_url": server.openai_url, "concurrency": 4}
    prices = root / "prices.yaml"
    prices.write_text(yaml.safe_dump({"models": {"compatible:*": {"input": IN, "output": OUT}}}))
    document |= {"roles": dict.fromkeys(ROLES, role), "budget": {"prices": str(prices)}, **settings}
    (root / "data" / "topics" / f"{topic}.yaml").write_text(yaml.safe_dump(document))


def compare(
    source: Path,
    root: Path,
    topic: str,
    snapshot: str,
    *,
    count: Callable[[Prompt], int] = tokens_in,
    later: str | None = None,
    pilot: int = 4,
    piloted: int = 5,
) -> list[Compared]:
    """Estimate, build against a server, and compare: before anything, without and with a pilot; before judging, too.

    The first pilot asks about `piloted` questions; before judging `pilot` calls are answered before the server fails,
    as a run that stopped would leave them. What was paid already stands in no later bill. With `later`, that
    snapshot's judging is compared as well, where verdicts are carried over.
    """
    open_for = [10**9]

    def fault(number: int, _prompt: Prompt) -> str | None:
        return None if number < open_for[0] else "http_403"

    def output(_prompt: Prompt, text: str) -> int:
        return count_tokens(text)

    found = []
    with MisbehavingServer(reply, schedule=fault, input_tokens=count, output_tokens=output) as server:
        copy_project(source, root, topic, server)

        def told(month: str) -> BuildEstimate:
            return estimate_build(Places(root=root), load_topic(root / "data" / "topics" / f"{topic}.yaml"), month)

        before = told(snapshot)
        of_pilot = pilot_build(
            Places(root=root), load_topic(root / "data" / "topics" / f"{topic}.yaml"), snapshot, piloted
        )
        paid_first, after_pilot = server.billed(IN, OUT), told(snapshot)
        assert of_pilot["dollars"] == pytest.approx(paid_first)
        run = lambda month, *stages: materialize(root, *stages, topic=topic, snapshot=month)  # noqa: E731
        run(snapshot, *STAGES[:-1])
        unjudged, paid = told(snapshot), server.billed(IN, OUT)
        open_for[0] = len(server.served) + pilot
        with contextlib.suppress(AssertionError):
            run(snapshot, judge_pools)
        stopped, paid_pilot = told(snapshot), server.billed(IN, OUT)
        open_for[0] = 10**9
        run(snapshot, judge_pools)
        total = server.billed(IN, OUT)
        found = [
            Compared(f"{topic} {snapshot}: before anything", before.dollars(), total),
            Compared(f"{topic} {snapshot}: {piloted} questions piloted", after_pilot.dollars(), total - paid_first),
            Compared(f"{topic} {snapshot}: pools stand", unjudged.dollars(), total - paid),
            Compared(f"{topic} {snapshot}: pools stand, {pilot} replies known", stopped.dollars(), total - paid_pilot),
        ]
        if later is not None:
            early = told(later)
            run(later, retrieve, pool_candidates)
            exact = told(later)
            whole = exact.dollars(carry_over=False)
            run(later, judge_pools)
            billed = server.billed(IN, OUT) - total
            found += [
                Compared(f"{topic} {later}: with carry-over, no pool yet", early.dollars(), billed),
                Compared(f"{topic} {later}: with carry-over (without: ${whole:.4f})", exact.dollars(), billed),
            ]
    return found


def main() -> None:
    """Compare on the project, topic and snapshots of the command line."""
    root, topic, snapshot, *later = sys.argv[1:]
    for name, count in (("cl100k_base", tokens_in), ("an unknown tokenizer", four_bytes)):
        print(f"server counts with {name}")
        with tempfile.TemporaryDirectory() as folder:
            for one in compare(
                Path(root).resolve(), Path(folder), topic, snapshot, count=count, later=later[0] if later else None
            ):
                print(f"  {one}")


if __name__ == "__main__":
    main()
