"""Settings from `sluicewick.toml`, the environment and the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.9 and 3.10
    import tomli as tomllib

DEFAULTS: dict[str, Any] = {
    "drain_timeout": 30.0,
    "log_level": "INFO",
    "weir.capacity": 256,
    "weir.policy": "block",
    "mooring.kind": "file",
    "mooring.every": 500,
    "mooring.seconds": 15.0,
    "silt.folder": ".sluicewick/silt",
    "silt.limit": 10_000,
    "gauge.port": 0,
}


def find(start: Path | None = None) -> Path | None:
    """The nearest ``sluicewick.toml`` upwards from the working directory; ``SLUICEWICK_CONFIG`` names one outright."""
    named = os.environ.get("SLUICEWICK_CONFIG")
    if named:
        return Path(named)
    folder = (start or Path.cwd()).resolve()
    for candidate in [folder, *folder.parents]:
        if (candidate / "sluicewick.toml").is_file():
            return candidate / "sluicewick.toml"
    return None


def load(flow: str, start: Path | None = None) -> dict[str, Any]:
    """Settings of a flow: defaults, then ``[default]``, then ``[flow.<name>]``, then the environment.

    A setting ``a.b`` is read from ``SLUICEWICK_A__B``: a double underscore stands for the dot. Numbers and booleans in
    the environment are read as TOML values, so ``SLUICEWICK_SILT__LIMIT=500`` is an integer.
    """
    settings = dict(DEFAULTS)
    path = find(start)
    if path is not None:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for table in (document.get("default", {}), document.get("flow", {}).get(flow, {})):
            settings.update(_flat(table))
    for name in DEFAULTS:
        variable = "SLUICEWICK_" + name.upper().replace(".", "__")
        if variable in os.environ:
            settings[name] = _value(os.environ[variable])
    unknown = sorted(settings.keys() - DEFAULTS.keys())
    if unknown:
        raise ValueError(f"{path}: unknown setting {unknown[0]!r}")
    return settings


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            out.update(_flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value
    return out


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
