from datetime import datetime, timezone

from sluicewick.tide import Tide


def test_cron_in_a_zone():
    ticks = Tide.cron("30 2 * * *", zone="Europe/Oslo").ticks(datetime(2024, 3, 30, 12, tzinfo=timezone.utc))
    # 02:30 does not exist on 31 March: the clock jumps from 02:00 to 03:00
    assert next(ticks).strftime("%m-%d %H:%M") == "04-01 02:30"
