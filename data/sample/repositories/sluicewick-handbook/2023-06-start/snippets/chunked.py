"""Collect records into lists of a fixed size, and give the rest at the end."""

from sluicewick.reach import DROP


class Chunked:
    def __init__(self, size):
        self.size, self.held = size, []
        self.__name__ = f"chunked_{size}"

    def __call__(self, record):
        self.held.append(record)
        if len(self.held) < self.size:
            return DROP
        full, self.held = self.held, []
        return {"records": full}
