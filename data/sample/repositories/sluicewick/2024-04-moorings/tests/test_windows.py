from datetime import datetime, timedelta, timezone

from sluicewick.windows import TumblingWindow


def test_windows_are_aligned_to_midnight():
    window = TumblingWindow(timedelta(hours=1), at=lambda record: record)
    assert window.start_of(datetime(2024, 5, 1, 9, 41, tzinfo=timezone.utc)).minute == 0
