"""Reading a dump against the reference scraper, a plain line loop and the bare decompression.

    python -m freshstack_dagster_tests.benchmarks.dump --gigabytes 2
        [--scraper PATH/parse_and_extract_queries.py] [--reference-python PATH]

writes a `Posts.xml` of that size (and a `.7z` of it) into a temporary folder, measures each reading in a process of
its own, prints CPU seconds a gigabyte and peak memory, and fails below the limits. The reference scraper is a script of
the reference's repository that stops at its first lines; `--scraper` runs it with those repaired (a default value, and
a logger that is None). Without it a stand-in does the same work in the same way: two passes of lxml's iterparse over
"start" and "end" events with recovery, a generator and a progress bar around them, elements cleared but never taken
from their parent, BeautifulSoup for the text of what matches. All read the whole dump, since the reference costs more
a gigabyte the longer a dump is; `--baseline-megabytes` gives it the beginning only. It is measured without its imports,
ours with start-up, index and texts included. `--reference-python` names a Python with lxml, beautifulsoup4, tqdm and,
for the script, freshstack.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TOPIC, NEXT_TOPIC = "bench-topic", "next-topic"
LEAST_RATIO = 20
MOST_MEMORY_MB = 500
NEXT_TOPIC_SHARE = 0.1


def generate(path: Path, size: int, seed: int = 1) -> None:
    """Write a dump of about `size` bytes that costs a parser what a real one does.

    Rows of 1.6 kB in the mean, two questions to three answers, and in a thousand bytes 37 characters written as
    entities: as in the dump of datascience.meta of 2024. Stack Overflow has 60 million rows in 100 GB.
    """
    chance = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(20_000)]
    pieces = [_piece(chance, words) for _ in range(40_000)]
    tags = [f"tag-{number}" for number in range(5000)]
    written, post = 0, 1
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write('\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n')
        while written < size:
            rows = []
            for _ in range(1000):
                first = chance.randrange(len(pieces) - 8)
                body = "".join(pieces[first : first + chance.randint(1, 6)])
                date = f"{2009 + post % 16}-{1 + post % 12:02d}-14T00:15:22.253"
                if post % 5 in (1, 3):  # the first of five has one answer, the third has two
                    last = post + 1 + (post % 5 == 3 and post % 2)
                    accepted = f'AcceptedAnswerId="{last}" ' if chance.random() < 0.5 else ""
                    topics = [TOPIC] if chance.random() < 0.0005 else []
                    topics += [NEXT_TOPIC] if chance.random() < 0.0005 else []
                    marked = "|".join(chance.choices(tags, k=3) + topics)
                    rows.append(
                        f'  <row Id="{post}" PostTypeId="1" {accepted}CreationDate="{date}" Score="{post % 50 - 5}" '
                        f'ViewCount="{post % 1000}" Body="{body}" OwnerUserId="{post % 99991}" '
                        f'LastEditorUserId="{post % 9973}" LastEditDate="2022-05-19T18:18:40.373" '
                        f'LastActivityDate="2022-05-19T18:18:40.373" '
                        f'Title="How does number {post} differ?" Tags="|{marked}|" AnswerCount="2" CommentCount="3" '
                        f'ContentLicense="CC BY-SA 4.0" />\n'
                    )
                else:
                    question = post - 2 if post % 5 == 0 else post - 1
                    rows.append(
                        f'  <row Id="{post}" PostTypeId="2" ParentId="{question}" CreationDate="{date}" '
                        f'Score="{post % 50 - 5}" Body="{body}" OwnerUserId="{post % 99991}" '
                        f'LastActivityDate="2022-05-19T18:18:40.373" CommentCount="0" '
                        f'ContentLicense="CC BY-SA 4.0" />\n'
                    )
                post += 1
            block = "".join(rows)
            file.write(block)
            written += len(block)
        file.write("</posts>")


def _piece(chance: random.Random, words: list[str]) -> str:
    """A paragraph or a block of code, as a body holds it in an attribute."""
    if chance.random() < 0.26:
        lines = [
            f"{'    ' * chance.randint(0, 2)}{one} = {two}(&quot;{three}&quot;, {four});"
            for one, two, three, four in (chance.choices(words, k=4) for _ in range(chance.randint(2, 13)))
        ]
        return f"&lt;pre&gt;&lt;code&gt;{'&#xA;'.join(lines)}&#xA;&lt;/code&gt;&lt;/pre&gt;&#xA;&#xA;"
    text = chance.choices(words, k=chance.randint(15, 60))
    for place in range(chance.randint(3, len(text) - 1), len(text), 22):
        text[place] = f"&lt;code&gt;{text[place]}&lt;/code&gt;"
    if chance.random() < 0.2:
        link = "&lt;a href=&quot;https://example.com/{0}&quot; rel=&quot;nofollow noreferrer&quot;&gt;{0}&lt;/a&gt;"
        text[0] = link.format(text[0])
    return f"&lt;p&gt;{' '.join(text)}&lt;/p&gt;&#xA;&#xA;"


def beginning(path: Path, target: Path, size: int) -> None:
    """The first rows of a dump as a dump."""
    with path.open("rb") as file:
        data = file.read(size)
    target.write_bytes(data[: data.rindex(b"\n") + 1] + b"</posts>")


def pack(path: Path, target: Path) -> None:
    """Pack a dump into a `.7z`."""
    import py7zr

    with py7zr.SevenZipFile(target, "w", filters=[{"id": py7zr.FILTER_LZMA2, "preset": 1}]) as archive:
        archive.write(path, "Posts.xml")


def reference(path: Path) -> int:
    """The reference scraper's way; returns the questions that have their accepted answer."""
    from bs4 import BeautifulSoup
    from lxml import etree
    from tqdm.autonotebook import tqdm

    def events(file: IO[bytes], what: str) -> Iterator[tuple[str, Any]]:
        # It wraps the parser's iterator in a generator and that in a progress bar over both events of every element.
        parsed = iter(etree.iterparse(file, events=("start", "end"), recover=True))

        def guarded() -> Iterator[tuple[str, Any]]:
            while True:
                try:
                    yield next(parsed)
                except StopIteration:
                    break

        return tqdm(guarded(), total=119_999_898, desc=what)

    questions: dict[str, dict[str, Any]] = {}
    with path.open("rb") as file:
        for event, element in events(file, "questions"):
            if event != "end":
                continue
            if element.tag == "row" and int(element.attrib["PostTypeId"]) == 1:
                tags = element.attrib.get("Tags", "").lower()
                if any(keyword in tags for keyword in [TOPIC]):
                    text = BeautifulSoup(element.attrib["Body"], "html.parser").get_text()
                    row = {"text": text, "answers": {}, "metadata": dict(element.attrib)}
                    questions[element.attrib["Id"]] = row
            element.clear()
    with path.open("rb") as file:
        for event, element in events(file, "answers"):
            if event != "end":
                continue
            if element.tag == "row" and int(element.attrib["PostTypeId"]) == 2:
                parent = element.attrib["ParentId"]
                if parent in questions:
                    text = BeautifulSoup(element.attrib["Body"], "html.parser").get_text()
                    answer = {"text": text, "metadata": dict(element.attrib)}
                    questions[parent]["answers"][element.attrib["Id"]] = answer
            element.clear()
    return sum(question["metadata"].get("AcceptedAnswerId") in question["answers"] for question in questions.values())


def scraper(path: Path, script: Path) -> int:
    """The reference's own script, repaired where it does not start; returns the questions that it writes."""
    source = script.read_text()
    for broken, whole in (
        ('filter: str = "all" | "title" | "body" | "tags"', 'filter: str = "tags"'),
        ("logger = logging.basicConfig(", "logger = logging.getLogger()\nlogging.basicConfig("),
    ):
        if broken not in source:
            raise SystemExit(f"{script}: not the script that this benchmark repairs; it lacks {broken!r}")
        source = source.replace(broken, whole)
    names: dict[str, Any] = {"__name__": "scraper"}
    exec(compile(source, str(script), "exec"), names)  # the user's own copy
    output = path.with_suffix(".jsonl")
    names["parse_xml"](str(path), str(output), [TOPIC], "tags")
    return output.read_bytes().count(b"\n")


def line_loop(path: Path) -> int:
    """One pass over the lines that only looks for the tag, and for answers of what it found."""
    topic = f"|{TOPIC}|".encode()
    wanted, found = set(), 0
    with path.open("rb") as file:
        for line in file:
            if b'PostTypeId="1"' in line:
                if topic in line and b'AcceptedAnswerId="' in line:
                    wanted.add(line.partition(b'AcceptedAnswerId="')[2].partition(b'"')[0])
            elif line.partition(b'<row Id="')[2].partition(b'"')[0] in wanted:
                found += 1
    return found


def read(path: Path, index: Path | None, topic: str) -> int:
    """Ours."""
    from freshstack_dagster.stackexchange import read_dump

    return read_dump(path, {topic}, index=False if index is None else index).height


def index(path: Path, folder: Path, workers: int) -> int:
    """Our index alone, with a number of workers."""
    from freshstack_dagster.stackexchange import ensure_index

    ensure_index(path, index_dir=folder, workers=workers)
    return 0


def unpack(path: Path) -> int:
    """The bare decompression."""
    from freshstack_dagster.stackexchange.archive import open_member

    scratch = memoryview(bytearray(1 << 20))
    with open_member(path, "Posts.xml") as stream:
        while stream.readinto(scratch):
            pass
    return 0


def start() -> int:
    """What every Python process with these libraries costs."""
    import freshstack_dagster.stackexchange  # noqa: F401

    return 0


def measure(what: str, *arguments: object, python: str = sys.executable) -> dict[str, float]:
    """Run one of the functions above in a process of its own."""
    command = [python, str(Path(__file__).resolve()), "--only", what]
    command += [json.dumps([None if value is None else str(value) for value in arguments])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _run(what: str, arguments: list[str | None]) -> None:
    if what in ("reference", "scraper"):
        import bs4  # noqa: F401
        import lxml.etree  # noqa: F401
        import tqdm.autonotebook  # noqa: F401
    began, before = time.monotonic(), _cpu()
    a = [Path(value) if value and "/" in value else value for value in arguments]
    calls = {
        "reference": lambda: reference(a[0]),
        "scraper": lambda: scraper(a[0], a[1]),
        "line_loop": lambda: line_loop(a[0]),
        "read": lambda: read(a[0], a[1], a[2]),
        "index": lambda: index(a[0], a[1], int(a[2])),
        "unpack": lambda: unpack(a[0]),
        "start": start,
        "generate": lambda: generate(a[0], int(float(a[1]) * 1e9)),
        "beginning": lambda: beginning(a[0], a[1], int(a[2])),
        "pack": lambda: pack(a[0], a[1]),
    }
    rows = calls[what]()
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        json.dumps(
            {
                "rows": rows,
                "wall": time.monotonic() - began,
                "cpu": _cpu() - (before if what in ("reference", "scraper") else 0),
                "own_mb": own.ru_maxrss / 1024,
                "child_mb": children.ru_maxrss / 1024,
            }
        )
    )


def main() -> int:
    """Measure, print, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--archive-gigabytes", type=float, help="size of the dump in the .7z (default: all of it)")
    parser.add_argument("--baseline-megabytes", type=int, help="how much of it the reference reads (default: all)")
    parser.add_argument("--scraper", type=Path, help="the reference's script")
    parser.add_argument("--reference-python", default=sys.executable, help="the Python that has what it imports")
    parser.add_argument("--only", nargs=2, metavar=("WHAT", "ARGUMENTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        _run(options.only[0], json.loads(options.only[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> int:
    posts, head, packed = folder / "Posts.xml", folder / "head.xml", folder / "posts.7z"
    # In processes of their own: a process takes over the peak memory of the one that started it.
    measure("generate", posts, options.gigabytes)
    size = posts.stat().st_size / 1e9
    if options.baseline_megabytes:
        measure("beginning", posts, head, options.baseline_megabytes * 1_000_000)
    else:
        head = posts
    to_pack, packed_size = posts, size
    if options.archive_gigabytes and options.archive_gigabytes < size:
        to_pack, packed_size = folder / "part.xml", options.archive_gigabytes
        measure("beginning", posts, to_pack, int(packed_size * 1e9))
    measure("pack", to_pack, packed)
    print(f"{size:.2f} GB of rows; {packed_size:.2f} GB packed to {packed.stat().st_size / 1e9:.2f} GB\n")
    print(f"{'':38}{'CPU s/GB':>9}{'wall s':>8}{'MB':>6}{'rows':>6}")

    def show(name: str, given: dict[str, float], gigabytes_read: float, processes: int = 0) -> dict[str, float]:
        # Memory: this process at its peak, and every worker at the peak of the largest.
        given["mb"] = given["own_mb"] + processes * given["child_mb"]
        given["a_gb"] = given["cpu"] / gigabytes_read
        print(f"{name:38}{given['a_gb']:9.2f}{given['wall']:8.1f}{given['mb']:6.0f}{given['rows']:6.0f}", flush=True)
        return given

    head_size = head.stat().st_size / 1e9
    what = ("scraper", head, options.scraper.resolve()) if options.scraper else ("reference", head)
    given = measure(*what, python=options.reference_python)
    theirs = show(f"reference scraper ({head_size:.1f} GB)", given, head_size)
    show("plain line loop", measure("line_loop", posts), size)
    started = show("start of a process", measure("start"), size)
    two = show("index alone, two workers", measure("index", posts, folder / "two", 2), size, 2)
    first = show("first topic, with its index", measure("read", posts, folder / "index", TOPIC), size)
    later = show("next topic, by the index", measure("read", posts, folder / "index", NEXT_TOPIC), size)
    alone = show("one topic without index", measure("read", posts, None, TOPIC), size)
    bare = show("7z: decompression alone", measure("unpack", packed), packed_size)
    from_7z = show("7z: first topic", measure("read", packed, folder / "packed", TOPIC), packed_size)
    later_7z = show("7z: next topic", measure("read", packed, folder / "packed", NEXT_TOPIC), packed_size)

    whole = {from_7z["rows"]} if packed_size == size else set()
    ratio = theirs["a_gb"] / first["a_gb"]
    share = (later["cpu"] - started["cpu"]) / (first["cpu"] - started["cpu"])
    checks = {
        f"{ratio:.0f} times the reference scraper's throughput (at least {LEAST_RATIO})": ratio >= LEAST_RATIO,
        f"next topic costs {share:.1%} of the first (at most {NEXT_TOPIC_SHARE:.0%})": share <= NEXT_TOPIC_SHARE,
        f"7z costs {from_7z['cpu'] / bare['cpu']:.2f} times its decompression": from_7z["cpu"] <= 1.5 * bare["cpu"],
        f"at most {MOST_MEMORY_MB} MB": max(each["mb"] for each in (two, first, later, alone, from_7z, later_7z))
        <= MOST_MEMORY_MB,
        "every way gives the same rows": len({first["rows"], alone["rows"]} | whole) == 1,
    }
    print()
    for text, holds in checks.items():
        print("ok    " if holds else "MISSED", text)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
