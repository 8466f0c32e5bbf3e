"""A role's model by environment, so that one topic file serves a laptop and a paid run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.settings import ModelRole

_SETTINGS = {"BASE_URL": "base_url", "API_KEY_ENV": "api_key_env"}


def role_from_environment(name: str, role: ModelRole, environ: Mapping[str, str]) -> ModelRole:
    """`role` with what the environment says about it.

    `FRESHSTACK_<ROLE>_MODEL` is `provider:model` (or `heuristic`), `FRESHSTACK_<ROLE>_BASE_URL` and
    `FRESHSTACK_<ROLE>_API_KEY_ENV` go with it; `<ROLE>` is the role's name in capitals. A provider that changes leaves
    the address and the key's name of the topic behind, which belong to another one. Raises SettingsError that names the
    variable.
    """
    prefix = f"FRESHSTACK_{name.upper()}_"
    changes: dict[str, Any] = {}
    if model := environ.get(f"{prefix}MODEL", "").strip():
        provider, _, rest = model.partition(":")
        if provider not in get_args(ModelRole.model_fields["provider"].annotation):
            raise SettingsError(f"{prefix}MODEL: expected provider:model such as openai:gpt-5-mini, got {model!r}")
        changes = {"provider": provider, "model": rest or "heuristic"}
        if provider != role.provider:
            changes |= {"base_url": None, "api_key_env": None}
    for suffix, key in _SETTINGS.items():
        if value := environ.get(f"{prefix}{suffix}", "").strip():
            changes[key] = value
    if not changes:
        return role
    try:
        return ModelRole.model_validate({**role.model_dump(), **changes})
    except ValidationError as error:
        why = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise SettingsError(f"{prefix}MODEL, {prefix}BASE_URL: {why}") from None
