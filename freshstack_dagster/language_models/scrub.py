"""Keys never appear in logs, tables, metadata, exceptions or the cache: every text from outside passes through here."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[secret]"
# What keys look like, masked ones included: providers echo a part of a wrong key in their error.
_LOOKS_SECRET = re.compile(r"\b(?:sk|pk|rk)-[\w*.-]{6,}|\bBearer\s+[\w*.~+/=-]{6,}|(?<=://)[^/\s@]+@", re.IGNORECASE)
_PARAMETER = re.compile(r"([?&](?:api[-_]?key|key|token|access_token|sig|code)=)[^&\s'\"]+", re.IGNORECASE)


class Scrubber:
    """Replaces known secrets, and what looks like one, in texts."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if secret and len(secret) >= 4}, key=len, reverse=True)

    def exact(self, text: str) -> str:
        """`text` without the known secrets; for replies, whose other words must stay as they are."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def message(self, text: str) -> str:
        """`text` as one line without the known secrets and without anything that looks like one; for errors."""
        line = " ".join(self.exact(text).split())
        return _PARAMETER.sub(rf"\1{HIDDEN}", _LOOKS_SECRET.sub(HIDDEN, line))


def public_url(url: str) -> str:
    """An address without user, password and parameters."""
    return re.sub(r"(?<=://)[^/@]*@", "", url).split("?", 1)[0].rstrip("/")
