import pytest

from sluicewick.reach import DROP, Reach


def test_drop():
    assert Reach(lambda record: DROP, name="drop").attempt(1) == []


def test_none_is_an_error():
    with pytest.raises(TypeError, match="returned None"):
        Reach(lambda record: None, name="forgot").attempt(1)


def test_only_named_errors_are_repeated():
    calls = []

    def work(record):
        calls.append(record)
        raise KeyError("no")

    with pytest.raises(KeyError):
        Reach(work, retries=5).attempt(1)
    assert len(calls) == 1
