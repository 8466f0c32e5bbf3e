"""Records a second through empty reaches: python benchmarks/empty_reaches.py [lanes]"""

import sys
import time

from sluicewick import Flow


def build(lanes):
    flow = Flow("empty")
    for name in ("one", "two", "three"):
        flow.reach(lambda record: record, name=name, lanes=lanes)
    return flow


if __name__ == "__main__":
    lanes = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    begun = time.perf_counter()
    report = build(lanes).pour({"n": number} for number in range(200_000))
    print(f"{report.seen / (time.perf_counter() - begun):,.0f} records a second with {lanes} lanes")
