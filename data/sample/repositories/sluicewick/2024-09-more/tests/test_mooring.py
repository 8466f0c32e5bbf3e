import pytest

from sluicewick.errors import MooringMismatch
from sluicewick.checkpoint import FileMooring


def test_mismatch_and_rebase(tmp_path):
    mooring = FileMooring(tmp_path)
    mooring.save("orders", "parse>enrich", 41)
    with pytest.raises(MooringMismatch, match="call rebase"):
        mooring.resume("orders", "parse>dedupe>enrich")
    mooring.rebase("orders", "parse>dedupe>enrich")
    assert mooring.resume("orders", "parse>dedupe>enrich") == 41


def test_fresh_start(tmp_path):
    assert FileMooring(tmp_path).resume("orders", "parse") is None
