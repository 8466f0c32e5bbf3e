from decimal import Decimal

import pytest

from sluicewick.errors import ShapeError
from sluicewick.shape import Shape


def test_gentle_loses_nothing():
    shape = Shape({"n": int}, coerce="gentle")
    assert shape({"n": " 7 "}) == {"n": 7}
    with pytest.raises(ShapeError, match="expected int, got str"):
        shape({"n": "7.5"})


def test_decimal_keeps_digits():
    assert Shape.of(total=Decimal).gently()({"total": "0.10"})["total"].as_tuple().exponent == -2
