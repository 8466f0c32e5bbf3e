"""The command `sluicewick`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from sluicewick.silt import SiltBox


def _flow(target: str) -> Any:
    """Import ``path/to/file.py:name``; a callable is called to build the flow."""
    file, _, name = target.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"sluicewick: cannot import {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, name or "flow")
    return found() if callable(found) and not hasattr(found, "reaches") else found


def survey(flow: Any) -> str:
    """The flow as a table: reach, lanes, weir, retries."""
    lines = [f"{'reach':<20} {'lanes':>5} {'weir':>14} {'retries':>7}"]
    for reach in flow.reaches:
        weir = f"{reach.weir.capacity} {reach.weir.policy}"
        lines.append(f"{reach.name:<20} {reach.lanes:>5} {weir:>14} {reach.retries:>7}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sluicewick")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, told in (("run", "run a flow"), ("survey", "print its reaches without running it")):
        command = commands.add_parser(name, help=told)
        command.add_argument("target", help="file.py:flow")
    silt = commands.add_parser("silt", help="look at failed records or run them again")
    silt.add_argument("action", choices=["ls", "replay", "purge"])
    silt.add_argument("target")
    silt.add_argument("--reach")
    told = parser.parse_args(arguments)
    flow = _flow(told.target)
    if told.command == "survey":
        print(survey(flow))
    elif told.command == "silt" and told.action == "ls":
        for line in SiltBox().read(flow.name):
            print(line["at"], line["reach"], line["error"])
    elif told.command == "silt":
        print(SiltBox().replay(flow.name, flow.pour, reach=told.reach), "records replayed")
    else:
        report = flow.pour(flow.source)
        print(report)
        return 3 if report.silted else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
