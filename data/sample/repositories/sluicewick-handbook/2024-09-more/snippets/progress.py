"""A line of progress for a source of known length."""

import sys
import time


def progress(source, total, every=1.0):
    begun = last = time.monotonic()
    for number, record in enumerate(source, start=1):
        yield record
        now = time.monotonic()
        if now - last >= every:
            last = now
            left = (now - begun) / number * (total - number)
            print(f"\r{number / total:6.1%}, {left:,.0f} s left", end="", file=sys.stderr)
