"""Test collections for retrieval on technical material, rebuilt month by month."""

__version__ = "0.1.0"
