"""Shapes: declared fields of a record."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, get_args, get_origin

from sluicewick.errors import ShapeError


class Shape:
    """The fields of a record and their types.

    ``coerce="strict"`` (the default) takes values of exactly the declared type; ``"gentle"`` converts text to int,
    float, Decimal, bool, date and datetime where that loses nothing, so ``"7"`` becomes 7 and ``"7.5"`` is refused for
    an int. Booleans from text are ``true``, ``false``, ``yes``, ``no``, ``1`` and ``0``, in any case.

    ``extra`` says what becomes of undeclared fields: ``"forbid"`` (the default), ``"drop"`` or ``"keep"``. A field
    whose type is ``X | None`` may be missing and is then filled with ``None``.
    """

    def __init__(self, fields: dict[str, Any], *, coerce: str = "strict", extra: str = "forbid") -> None:
        self.fields, self.coerce, self.extra = fields, coerce, extra

    @classmethod
    def of(cls, **fields: Any) -> "Shape":
        return cls(fields)

    def gently(self) -> "Shape":
        """The same shape with ``coerce="gentle"``."""
        return Shape(self.fields, coerce="gentle", extra=self.extra)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, wanted in self.fields.items():
            optional = type(None) in get_args(wanted)
            kinds = get_args(wanted) if get_origin(wanted) is not None else (wanted,)
            if record.get(name) is None:
                if not optional:
                    raise ShapeError(name, _names(kinds), "nothing")
                out[name] = None
                continue
            out[name] = self._value(name, record[name], kinds)
        surplus = record.keys() - self.fields.keys()
        if surplus and self.extra == "forbid":
            raise ShapeError(sorted(surplus)[0], "no such field", "one")
        if self.extra == "keep":
            out.update({name: record[name] for name in surplus})
        return out

    def _value(self, name: str, value: Any, kinds: tuple[type, ...]) -> Any:
        if type(value) in kinds:
            return value
        if self.coerce == "gentle" and isinstance(value, str):
            for kind in kinds:
                try:
                    return _convert(value.strip(), kind)
                except (ValueError, ArithmeticError):
                    continue
        raise ShapeError(name, _names(kinds), type(value).__name__)


def _convert(text: str, kind: type) -> Any:
    if kind is bool:
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in known:
            return known[text.lower()]
        raise ValueError(text)
    if kind in (date, datetime):
        return kind.fromisoformat(text)
    if kind in (int, float, Decimal, str):
        return kind(text)
    raise ValueError(text)


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
