from __future__ import annotations

import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.language_models.roles import role_from_environment
from freshstack_dagster.settings import ModelRole


def test_the_environment_names_a_model() -> None:
    role = ModelRole(provider="compatible", model="qwen", base_url="http://localhost:1/v1", attempts=5)
    assert role_from_environment("judge", role, {"FRESHSTACK_NUGGETS_MODEL": "openai:gpt-5"}) is role
    changed = role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "anthropic:claude-haiku-4-5"})
    assert (changed.provider, changed.model, changed.base_url, changed.attempts) == (
        "anthropic",
        "claude-haiku-4-5",
        None,
        5,
    )
    other = role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "compatible:llama3:8b"})
    assert (other.model, other.base_url) == ("llama3:8b", "http://localhost:1/v1")
    assert role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "heuristic"}).model == "heuristic"
    named = {"FRESHSTACK_JUDGE_BASE_URL": "http://host/v1", "FRESHSTACK_JUDGE_API_KEY_ENV": "MINE"}
    assert role_from_environment("judge", role, named).base_url == "http://host/v1"


@pytest.mark.parametrize("value", ["gpt-5", "mistral:large", "openai:", "compatible:qwen"])
def test_what_does_not_fit_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingsError, match="FRESHSTACK_JUDGE_MODEL"):
        role_from_environment("judge", ModelRole(), {"FRESHSTACK_JUDGE_MODEL": value})
