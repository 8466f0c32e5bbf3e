"""The prompts of the language-model roles: Markdown files with a version, bundled or a user's own.

A prompt file has two sections, `# System` and `# User`, and names the texts it wants as `{{question}}`. Its version is
a hash of its text and stands with every row that was made with it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from freshstack_dagster.errors import SettingsError

_BUNDLED = Path(__file__).parent / "prompts"
_SECTIONS = re.compile(r"\A\s*# System[ \t]*\n(?P<system>.*?)\n# User[ \t]*\n(?P<user>.*)\Z", re.DOTALL)
_PLACE = re.compile(r"\{\{\s*(\w*)\s*\}\}")

# For each task the texts a prompt must name, and those it may.
_MUST: dict[str, frozenset[str]] = {
    "nuggets": frozenset({"question", "answer"}),
    "sub_questions": frozenset({"question"}),
    "closed_book_answer": frozenset({"question"}),
    "support": frozenset({"nuggets", "documents"}),
}
_MAY: dict[str, frozenset[str]] = {
    "support": frozenset({"question", "answer", "nugget_count", "document_count"}),
}


@dataclass(frozen=True)
class Prompt:
    """A prompt: the system text, the template of the user's turn, and the version of the file."""

    task: str
    system: str
    user: str
    version: str

    def fill(self, texts: Mapping[str, str]) -> str:
        """The user's turn with the texts in their places; braces inside the texts stay as they are."""
        return _PLACE.sub(lambda place: texts[place[1]], self.user)


def load_prompt(task: str, path: Path | None = None) -> Prompt:
    """Read the prompt of a task (`nuggets`, `sub_questions`, `closed_book_answer`, `support`) or a user's file for it.

    The version is the first 16 hex digits of the sha256 of the file's text, line ends normalised. Raises SettingsError
    that names the file if it cannot be read, lacks a section or a text the task needs, or names one that is unknown.
    """
    file = path or _BUNDLED / f"{task}.md"
    try:
        text = file.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SettingsError(f"{file}: the prompt for {task} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: the prompt for {task} is not UTF-8 (byte {error.start})") from error
    sections = _SECTIONS.match(text)
    if sections is None:
        raise SettingsError(f"{file}: a prompt starts with a line '# System' and goes on with a line '# User'")
    _check_places(file, task, sections["system"], sections["user"])
    version = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Prompt(task, sections["system"].strip(), sections["user"].strip(), version)


def _check_places(file: Path, task: str, system: str, user: str) -> None:
    named = set(_PLACE.findall(user))
    must, may = _MUST[task], _MUST[task] | _MAY.get(task, frozenset())
    if in_system := set(_PLACE.findall(system)):
        raise SettingsError(f"{file}: {_list(in_system)} stands under '# System'; texts go under '# User'")
    if missing := must - named:
        raise SettingsError(f"{file}: the prompt for {task} must name {_list(missing)} under '# User'")
    if unknown := named - may:
        raise SettingsError(f"{file}: unknown {_list(unknown)}; the prompt for {task} may name {_list(may)}")


def _list(names: set[str] | frozenset[str]) -> str:
    return ", ".join("{{" + name + "}}" for name in sorted(names))
