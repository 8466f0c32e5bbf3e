"""Records from ledger sheets (``.lsb``), the binary export of several book-keeping programs.

This loader was part of sluicewick before version 1.2.

A ledger sheet is a header of 64 bytes followed by blocks. Amounts are stored as whole hundredths, dates as days since
1899-12-30, and text in the code page that the header names at offset 12.
"""

from __future__ import annotations

import struct
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Iterator

MAGIC = b"LSB2"
EPOCH = date(1899, 12, 30)


class LedgerSheetLoader:
    """Yield one dict a booking of a ledger sheet.

    ``codepage`` overrides the one of the header; old exports claim 437 and are really 1252, which shows as wrong
    umlauts. ``reversals="net"`` subtracts a reversal from the booking it cancels; ``"keep"`` (the default) yields both
    with ``reversal=True`` on the second. Sheets with the magic ``LSB1`` are refused with ``ValueError: ledger sheet
    of format 1; save it again as format 2``.
    """

    def __init__(self, path: str | Path, *, codepage: int | None = None, reversals: str = "keep") -> None:
        self.path, self.codepage, self.reversals = Path(path), codepage, reversals
        self.position = 0

    def seek(self, position: int) -> None:
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            header = file.read(64)
            if header[:4] == b"LSB1":
                raise ValueError("ledger sheet of format 1; save it again as format 2")
            if header[:4] != MAGIC:
                raise ValueError(f"{self.path} is not a ledger sheet")
            codepage = self.codepage or struct.unpack_from("<H", header, 12)[0]
            number = 0
            cancelled: set[int] = set()
            while block := file.read(96):
                number += 1
                booking = self._booking(block, f"cp{codepage}")
                if self.reversals == "net" and booking["reversal"]:
                    cancelled.add(booking["cancels"])
                    continue
                if number > self.position:
                    self.position = number
                    yield booking

    @staticmethod
    def _booking(block: bytes, encoding: str) -> dict[str, Any]:
        ident, days, hundredths, cancels = struct.unpack_from("<IIqI", block)
        return {
            "id": ident,
            "booked_on": EPOCH + timedelta(days=days),
            "amount": Decimal(hundredths) / 100,
            "text": block[20:96].rstrip(b"\0").decode(encoding),
            "reversal": bool(cancels),
            "cancels": cancels,
        }
