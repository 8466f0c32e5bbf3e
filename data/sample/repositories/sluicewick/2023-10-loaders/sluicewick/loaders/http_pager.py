"""Records from paged HTTP interfaces."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Iterator


class HttpPager:
    """Yield the items of every page of a JSON interface.

    ``items`` names the key under which a page holds its records, ``next_page`` the key of the next page's address (or
    a function of the page). A reply with status 429 or 503 is asked for again after its ``Retry-After`` header, at
    most ``patience`` seconds in all (120 unless told). Pages are asked for one after another; the pager never reads
    ahead, so back-pressure also slows the requests.
    """

    def __init__(
        self,
        url: str,
        *,
        items: str = "items",
        next_page: str | Callable[[dict[str, Any]], str | None] = "next",
        headers: dict[str, str] | None = None,
        patience: float = 120.0,
    ) -> None:
        self.url, self.items, self.next_page = url, items, next_page
        self.headers, self.patience = headers or {}, patience
        self.position: str | None = None

    def seek(self, position: str) -> None:
        """Resume at a page address. A page is resumed whole, so up to one page of records is seen twice."""
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        url: str | None = self.position or self.url
        while url:
            self.position = url
            page = self._get(url)
            yield from page[self.items]
            url = self.next_page(page) if callable(self.next_page) else page.get(self.next_page)

    def _get(self, url: str) -> dict[str, Any]:
        waited = 0.0
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, headers=self.headers), timeout=30) as reply:
                    return json.load(reply)
            except urllib.error.HTTPError as error:
                pause = float(error.headers.get("Retry-After", 1))
                if error.code not in (429, 503) or waited + pause > self.patience:
                    raise
                time.sleep(pause)
                waited += pause
