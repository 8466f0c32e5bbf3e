"""From the bytes of a blob to text and back: encodings, and what is no text at all.

Inside the chunker every text is UTF-8, because the tokenizer and the grammars count its bytes. `Document` carries the
way back: the byte in the blob and the character in the decoded text for each byte of that UTF-8.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

BINARY_PROBE_BYTES = 8000  # git's own rule: a NUL byte this early makes a file binary
DETECTION_SAMPLE_BYTES = 16384

_LFS_POINTER = re.compile(rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v\d")
_BYTE_ORDER_MARKS = (  # longest first: UTF-32-LE begins like UTF-16-LE
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Slices of these cannot be read alone: what a byte means hangs on shift sequences before it.
_STATEFUL = [
    *("utf_7", "hz", "iso2022_jp", "iso2022_jp_1", "iso2022_jp_2", "iso2022_jp_2004", "iso2022_jp_3"),
    *("iso2022_jp_ext", "iso2022_kr"),
]
_NOT_GUESSED = [*_STATEFUL, "utf_8_sig", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"]
_CONTROL = re.compile(rb"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_HIGH = re.compile(rb"[\x80-\xff]")
_HIGH_PAIR = re.compile(rb"[\x80-\xff]{2}")


class NotText(Exception):
    """The bytes are no text; `outcome` and `detail` go into the row of `files`."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Document:
    """A decoded blob.

    `utf8` are the text's bytes in UTF-8 and `text` the same as str, the byte order mark included as one character;
    `encoding` decodes any slice of the blob that starts and ends between characters.
    """

    data: bytes
    text: str
    utf8: bytes
    encoding: str
    detail: str = ""

    def positions(self, offsets: list[int]) -> list[tuple[int, int]]:
        """(byte in the blob, character in the text) of ascending UTF-8 `offsets`, which lie between characters."""
        if self.text.isascii() and self.utf8 is self.data:
            return [(offset, offset) for offset in offsets]
        found: list[tuple[int, int]] = []
        last = raw = char = 0
        for offset in offsets:
            piece = self.utf8[last:offset].decode("utf-8")
            char += len(piece)
            raw += offset - last if self.utf8 is self.data else len(piece.encode(self.encoding))
            last = offset
            found.append((raw, char))
        return found


def decode(data: bytes) -> Document:
    """Decode a blob: UTF-8 with or without mark, UTF-16 and UTF-32 with mark, else by charset-normalizer.

    Raises NotText with the outcome `empty`, `lfs_pointer` or `binary`.
    """
    if not data.strip():
        raise NotText("empty", "" if not data else "only blanks")
    if len(data) < 1024 and _LFS_POINTER.match(data):
        raise NotText("lfs_pointer", "the content is in Git LFS")
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            document = _marked(data, encoding)
            if document is not None:
                return document
    if data.startswith(b"%PDF-"):
        raise NotText("binary", "PDF")
    if b"\0" in data[:BINARY_PROBE_BYTES]:
        raise NotText("binary", f"a NUL byte in the first {BINARY_PROBE_BYTES}")
    try:
        return Document(data, data.decode("utf-8"), data, "utf-8")
    except UnicodeDecodeError:
        return _guessed(data)


def _marked(data: bytes, encoding: str) -> Document | None:
    try:
        text = data.decode(encoding)
        utf8 = data if encoding == "utf-8" else text.encode("utf-8")
    except UnicodeError:
        return None
    return Document(data, text, utf8, encoding, "byte order mark")


def _guessed(data: bytes) -> Document:
    """Neither UTF-8 nor marked: ask charset-normalizer about the lines that are not ASCII."""
    import charset_normalizer

    if len(_CONTROL.findall(data)) * 20 > len(data):
        raise NotText("binary", "control characters, and no UTF-8")
    sample = b"\n".join(line for line in data[: 1 << 20].splitlines() if not line.isascii())[:DETECTION_SAMPLE_BYTES]
    names: list[str] = []
    if not _lone_western_letters(sample):
        found = list(charset_normalizer.from_bytes(sample, cp_exclusion=_NOT_GUESSED))
        # Short Western text fits its sisters as well; in repositories it is the likeliest.
        names = [match.encoding for match in found if match.chaos == found[0].chaos and match.encoding != "utf_8"]
        names = ["cp1252"] if "cp1252" in names else names[:1]
    for name in [*names, "cp1252", "latin-1"]:
        try:
            text = data.decode(name)
            utf8 = text.encode("utf-8")
            # Some encodings have two spellings for a character; offsets need the one that is in the blob.
            if text.encode(name) != data:
                continue
        except UnicodeError:
            continue
        encoding = codecs.lookup(name).name
        return Document(data, text, utf8, encoding, "encoding detected" if name in names else "encoding assumed")
    raise NotText("binary", "no known encoding")  # out of reach: latin-1 decodes any bytes


def _lone_western_letters(sample: bytes) -> bool:
    """Rare bytes outside ASCII, never two together: a name or a sign in Western text, too little to detect by."""
    return len(_HIGH.findall(sample)) * 10 < len(sample) and _HIGH_PAIR.search(sample) is None
