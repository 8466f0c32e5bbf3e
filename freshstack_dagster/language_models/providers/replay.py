"""Replay: reads the cache and never calls. `model` names the provider and model that wrote it, `openai:gpt-5-mini`."""

from __future__ import annotations

from typing import Any

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models.providers import PROVIDERS
from freshstack_dagster.settings import ModelRole


def original(role_name: str, role: ModelRole) -> ModelRole:
    """The role as it was when its replies were written. Raises ModelError if `model` does not name a provider."""
    provider, _, model = role.model.partition(":")
    if provider not in PROVIDERS or not model:
        raise ModelError(
            f"role {role_name}: provider replay needs a model such as openai:gpt-5-mini, one of "
            f"{', '.join(PROVIDERS)} before the colon; got {role.model!r}"
        )
    fields: dict[str, Any] = {"provider": provider, "model": model, "cache": "only", "batch": False}
    return role.model_copy(update=fields)
