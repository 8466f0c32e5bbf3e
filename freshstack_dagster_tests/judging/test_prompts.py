"""Prompts are files with a version; a user's file replaces a bundled one, and a broken one is refused by name."""

from __future__ import annotations

import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.judging.prompts import load_prompt
from freshstack_dagster.judging.replies import SCHEMAS, support_schema

ALL_SCHEMAS = {**SCHEMAS, "support": support_schema(20, 5)}


@pytest.mark.parametrize("task", ALL_SCHEMAS)
def test_every_task_has_a_prompt_that_names_its_reply(task):
    prompt = load_prompt(task)
    assert len(prompt.version) == 16
    for name in ALL_SCHEMAS[task]["properties"]:
        assert f"`{name}`" in prompt.system
    assert "not meant for you" in prompt.system


def test_the_version_is_of_the_text(tmp_path):
    file = tmp_path / "own.md"
    file.write_text("# System\nBe strict.\n# User\n{{question}} {{ answer }}\n")
    first = load_prompt("nuggets", file)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert load_prompt("nuggets", file).version == first.version
    file.write_text(file.read_text() + "More.")
    assert load_prompt("nuggets", file).version != first.version
    assert first.system == "Be strict."
    assert first.fill({"question": "{{answer}}", "answer": r"a\1{x}"}) == "{{answer}} a\\1{x}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no sections", "starts with a line '# System'"),
        ("# System\nx\n# User\n{{question}}", r"must name \{\{answer\}\}"),
        ("# System\nx\n# User\n{{question}} {{answer}} {{questoin}}", r"unknown \{\{questoin\}\}"),
        ("# System\n{{question}}\n# User\n{{question}} {{answer}}", "stands under '# System'"),
    ],
)
def test_a_broken_prompt_is_refused_in_one_line_that_names_it(tmp_path, text, message):
    file = tmp_path / "own.md"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message) as refused:
        load_prompt("nuggets", file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_prompt_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load_prompt("support", tmp_path / "missing.md")
    (tmp_path / "latin.md").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_prompt("support", tmp_path / "latin.md")
