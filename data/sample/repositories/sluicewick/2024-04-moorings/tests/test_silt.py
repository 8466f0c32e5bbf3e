import pytest

from sluicewick import SiltFull
from sluicewick.silt import SiltBox


def test_limit(tmp_path):
    box = SiltBox(tmp_path, limit=1)
    box.add("orders", {"id": 1}, "parse", ValueError("no"))
    with pytest.raises(SiltFull, match="1 records of flow 'orders' failed"):
        box.add("orders", {"id": 2}, "parse", ValueError("no"))


def test_opaque_records_are_not_replayed(tmp_path):
    box = SiltBox(tmp_path)
    box.add("orders", object(), "parse", ValueError("no"))
    box.add("orders", {"id": 2}, "parse", ValueError("no"))
    poured = []
    assert box.replay("orders", poured.extend) == 1
    assert poured == [{"id": 2}]
