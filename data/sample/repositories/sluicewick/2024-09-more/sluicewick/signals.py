"""Stop flows on SIGTERM and SIGINT."""

from __future__ import annotations

import signal
import threading
from typing import Any


def drain_on_signals(flow: Any) -> None:
    """Make SIGTERM and the first SIGINT call ``flow.stop()``; a second SIGINT ends the process.

    Only the main thread may set handlers. Elsewhere nothing is done, and whoever runs the flow has to stop it.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    interrupted = False

    def handler(number: int, _frame: Any) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted = interrupted or number == signal.SIGINT
        flow.stop()

    for number in (signal.SIGINT, getattr(signal, "SIGTERM", signal.SIGINT)):
        signal.signal(number, handler)
