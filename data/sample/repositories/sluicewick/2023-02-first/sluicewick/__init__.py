"""Small dataflows in plain Python."""

from sluicewick.errors import ShapeError, SiltFull, SluicewickError, WeirOverflow
from sluicewick.flow import Flow
from sluicewick.reach import Reach
from sluicewick.weir import Weir

__all__ = ["Flow", "Reach", "ShapeError", "SiltFull", "SluicewickError", "Weir", "WeirOverflow"]
