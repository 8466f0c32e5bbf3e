"""Windows: group records by time."""

from sluicewick.windows.session import SessionWindow
from sluicewick.windows.tumbling import TumblingWindow

__all__ = ["SessionWindow", "TumblingWindow"]
