import pytest

from sluicewick import Weir, WeirOverflow


def test_raise_policy_tells_the_capacity():
    weir = Weir(capacity=2, policy="raise")
    weir.put(1)
    weir.put(2)
    with pytest.raises(WeirOverflow, match="full at 2 records"):
        weir.put(3)


def test_shed_oldest_keeps_the_newest():
    weir = Weir(capacity=2, policy="shed_oldest")
    for record in (1, 2, 3):
        weir.put(record)
    assert [weir.take(), weir.take()] == [2, 3]
    assert weir.shed == 1


def test_unknown_policy():
    with pytest.raises(ValueError, match="unknown weir policy"):
        Weir(policy="drop")
