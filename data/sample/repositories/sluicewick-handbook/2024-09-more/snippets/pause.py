"""Hold a flow back while a file called PAUSE exists."""

import time
from pathlib import Path


def pausing(source, flag=Path("PAUSE"), poll=1.0):
    for record in source:
        while flag.exists():
            time.sleep(poll)
        yield record
