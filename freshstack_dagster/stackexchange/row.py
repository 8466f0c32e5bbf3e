"""One row of a dump by a real XML parser, whatever form it is written in."""

from __future__ import annotations

import re

from freshstack_dagster.errors import SourceError

_CHARACTER_REFERENCE = re.compile(rb"&#(?:x([0-9a-fA-F]{1,8})|([0-9]{1,10}));")
_RAW_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def split_tags(attribute: str | None) -> list[str]:
    """The tags of a parsed Tags attribute, `<a><b>` or `|a|b|`, in order."""
    if not attribute:
        return []
    return [tag for tag in re.split(r"[<>|]+", attribute) if tag]


def parse_row(row: bytes, name: str, offset: int) -> dict[str, str]:
    """The attributes of one `<row .../>` by a real XML parser.

    Characters that XML does not allow, raw or as references (`&#x0E;`), and bytes that are not UTF-8 become U+FFFD
    instead of costing the row. Raises SourceError, naming `name` and the byte `offset`, if it is no row at all.
    """
    from lxml import etree

    if row.endswith(b">") and not row.endswith(b"/>"):
        row = row[:-1] + b"/>"  # <row ...></row>
    parser = etree.XMLParser(huge_tree=True, resolve_entities=False, no_network=True)
    try:
        return dict(etree.fromstring(row, parser).attrib)
    except etree.XMLSyntaxError:
        pass
    try:
        return dict(etree.fromstring(_mend(row), parser).attrib)
    except etree.XMLSyntaxError as error:
        reason = str(error).splitlines()[0]
        raise SourceError(
            f"{name}: the row at byte {offset} is not XML ({reason}); the dump is damaged, get it again"
        ) from error


def _mend(row: bytes) -> bytes:
    row = _CHARACTER_REFERENCE.sub(_allowed_reference, _joined_surrogates(row))
    row = row.decode("utf-8", "replace").encode()
    return _RAW_CONTROL.sub("\N{REPLACEMENT CHARACTER}".encode(), row)


def _allowed_reference(match: re.Match[bytes]) -> bytes:
    code = int(match[1], 16) if match[1] else int(match[2])
    allowed = code in (0x9, 0xA, 0xD) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return match[0] if allowed else b"&#xFFFD;"


_REFERENCE_PAIR = re.compile(
    rb"&#(?:x([dD][89abAB][0-9a-fA-F]{2})|(5[5-7][0-9]{3}));"
    rb"&#(?:x([dD][c-fC-F][0-9a-fA-F]{2})|(5[6-7][0-9]{3}));"
)


def _joined_surrogates(row: bytes) -> bytes:
    """An emoji written as two surrogate references becomes the one character that it is."""

    def join(match: re.Match[bytes]) -> bytes:
        high = int(match[1], 16) if match[1] else int(match[2])
        low = int(match[3], 16) if match[3] else int(match[4])
        if not (0xD800 <= high < 0xDC00 <= low < 0xE000):
            return match[0]
        return b"&#%d;" % (0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)

    return _REFERENCE_PAIR.sub(join, row)
