"""What a model call costs: dollars per million tokens, from the bundled table or the user's own."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.strict_yaml import read_yaml

BUNDLED = Path(__file__).with_name("prices.yaml")
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8})$")
_KEYS = {"input", "output", "cached_input", "batch_discount"}


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens in, out, and in but read from the provider's cache; the share that a batch saves."""

    input: float
    output: float
    cached_input: float
    batch_discount: float = 0.0

    def dollars(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0, *, batch: bool = False) -> float:
        """The price of a call; `cached_tokens` are part of `input_tokens`."""
        million = (
            (input_tokens - cached_tokens) * self.input
            + cached_tokens * self.cached_input
            + output_tokens * self.output
        )
        return million / 1e6 * (1 - self.batch_discount if batch else 1)


class Prices:
    """A price for each `provider:model`; the user's table goes before the bundled one, patterns such as `*` allowed."""

    def __init__(self, tables: list[dict[str, Price]], source: Path) -> None:
        self._tables = tables
        self.source = source

    def of(self, model: str) -> Price | None:
        """The price of `provider:model`, else that of the name without its date, else that of a pattern, else None."""
        for table in self._tables:
            for name in dict.fromkeys((model, _DATED.sub("", model))):
                if name in table:
                    return table[name]
            for pattern, price in table.items():
                if "*" in pattern and fnmatch.fnmatchcase(model, pattern):
                    return price
        return None


def load_prices(override: Path | None = None) -> Prices:
    """The bundled prices, and before them those of the user's file. Raises SettingsError that names the fault."""
    bundled = _read(BUNDLED)
    return Prices([bundled] if override is None else [_read(override), bundled], override or BUNDLED)


@lru_cache(maxsize=16)
def _read_at(path: Path, _changed: float) -> dict[str, Price]:
    document = read_yaml(path) or {}
    if not isinstance(document, dict) or not isinstance(document.get("models", {}), dict):
        raise SettingsError(f"{path}: expected `models:` with one `provider:model` a line")
    return {name: _price(path, name, values) for name, values in document.get("models", {}).items()}


def _read(path: Path) -> dict[str, Price]:
    try:
        changed = path.stat().st_mtime
    except OSError as error:
        raise SettingsError(f"{path}: the price table cannot be read: {error.strerror}") from None
    return _read_at(path, changed)


def _price(path: Path, name: str, values: Any) -> Price:
    if ":" not in str(name):
        raise SettingsError(f"{path}: {name}: name a model as provider:model, such as openai:{name}")
    if not isinstance(values, dict) or not {"input", "output"} <= set(values) <= _KEYS:
        raise SettingsError(f"{path}: {name}: needs input and output, may have cached_input and batch_discount")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in values.values()):
        raise SettingsError(f"{path}: {name}: prices are dollars per million tokens, numbers from 0 on")
    if values.get("batch_discount", 0) > 1:
        raise SettingsError(f"{path}: {name}: batch_discount is a share between 0 and 1")
    return Price(
        input=float(values["input"]),
        output=float(values["output"]),
        cached_input=float(values["cached_input"] if "cached_input" in values else values["input"]),
        batch_discount=float(values.get("batch_discount", 0.0)),
    )
