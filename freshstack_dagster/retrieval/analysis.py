"""Text to index terms: Lucene's English analysis, and one that understands identifiers.

Both find raw tokens with one regular expression and expand each distinct raw token to its terms once, so that the
stemmer and the splitter see every word of a corpus a single time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

# The 33 words of Lucene's EnglishAnalyzer.
_STOPWORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOPWORDS = frozenset(_STOPWORDS.split())
# Lucene's StandardTokenizer cuts longer tokens into pieces of this many characters.
LONGEST = 255
# Scripts without spaces: StandardTokenizer makes every Han and Hiragana character a token.
_SINGLE = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = rf"[^\W{_SINGLE}]"
# Word boundaries of Unicode's UAX 29: letters, digits and underscores are one word; a single '.', ':' or apostrophe
# between letters joins, so does '.', ',', ';' or an apostrophe between digits; underscores alone are no word.
_UAX29 = (
    rf"[{_SINGLE}]|_*[^\W_{_SINGLE}]{_WORD}*"
    rf"(?:(?:(?<=[^\W\d_])[.:·'’](?=[^\W\d_{_SINGLE}])|(?<=\d)[.,;'’](?=\d)){_WORD}+)*"
)
_POSSESSIVE = re.compile(r"['’＇][sS]$")
# Names of languages that punctuation tells apart, version numbers, identifiers.
_CODE = rf"(?<!\w)(?:[A-Za-z](?:\+\+\d*|#)(?!\w)|[vV]?\d+(?:\.\d+)+)|[{_SINGLE}]|{_WORD}+"
_LANGUAGE = re.compile(r"[a-z](?:\+\+|#)")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")


@dataclass(frozen=True)
class Analysis:
    """How text becomes terms. `version` changes whenever the terms of any text change, so that an index made with
    older terms is known to be stale.
    """

    name: str
    version: str
    pattern: re.Pattern[str]
    expand: Callable[[str], tuple[str, ...]]

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order, repeated as often as they occur."""
        return list(chain.from_iterable(map(self.expand, self.pattern.findall(text))))


class Vocabulary:
    """Terms numbered in the order in which they are first seen; encodes texts to arrays of term numbers."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.ids: dict[str, int] = {}
        self._raw = _Expansion(analysis.expand, self.ids)

    def encode(self, texts: Iterable[str]) -> Iterable[list[int]]:
        """Term numbers of each text, adding terms that are new."""
        find, numbers = self.analysis.pattern.findall, self._raw.__getitem__
        for text in texts:
            yield list(chain.from_iterable(map(numbers, find(text))))


class _Expansion(dict[str, tuple[int, ...]]):
    """Raw token to term numbers, filled when a token is first met."""

    def __init__(self, expand: Callable[[str], tuple[str, ...]], ids: dict[str, int]) -> None:
        super().__init__()
        self._expand, self._ids = expand, ids

    def __missing__(self, raw: str) -> tuple[int, ...]:
        ids = self._ids
        numbers = self[raw] = tuple(ids.setdefault(term, len(ids)) for term in self._expand(raw))
        return numbers


def _expand_english(raw: str) -> tuple[str, ...]:
    """Possessive, lower case, stopwords, Porter: the filters of Lucene's EnglishAnalyzer in their order."""
    pieces = (raw,) if len(raw) <= LONGEST else tuple(raw[i : i + LONGEST] for i in range(0, len(raw), LONGEST))
    words = (_POSSESSIVE.sub("", piece).lower() for piece in pieces)
    return tuple(_stem(word) for word in words if word not in STOPWORDS)


def _expand_code(raw: str) -> tuple[str, ...]:
    """An identifier whole and in its parts; `C++17` also as `c++`; words as in the English analysis.

    Tokens longer than 255 characters are encoded data, not words, and give no term.
    """
    if len(raw) > LONGEST:
        return ()
    lower = raw.lower()
    if language := _LANGUAGE.match(lower):
        return (lower,) if language.end() == len(lower) else (lower, language.group())
    if version := _VERSION.fullmatch(lower):
        return (version.group(1),)
    # Case separates the parts of an identifier in ASCII only; other letters are split at underscores.
    parts = _PARTS.findall(raw) if raw.isascii() else [part for part in raw.split("_") if part]
    terms = [_stem(word) for part in parts if (word := part.lower()) not in STOPWORDS]
    return (lower.strip("_"), *terms) if len(parts) > 1 else tuple(terms)


@cache
def _stemmer() -> Any:
    import Stemmer

    # The cache of expansions makes the stemmer's own superfluous.
    return Stemmer.Stemmer("porter", 0)


def _stem(word: str) -> str:
    """Porter's stem as Lucene takes it.

    Lucene leaves words of one or two letters alone, and like Porter's own later program (and unlike Snowball's
    `porter`) it takes -logi to -log and -bli to -ble, which joins `technology` and `technological`, `possibly` and
    `possible`.
    """
    if len(word) < 3:
        return word
    stem = _stemmer().stemWord(word)
    if stem.endswith("logi") and _MEASURED.search(stem[:-4]):
        return stem[:-1]
    if stem.endswith("bli") and _MEASURED.search(stem[:-3]):
        return _stemmer().stemWord(stem[:-1] + "e")
    return stem


# A vowel (y after a consonant is one) followed by a consonant: Porter's measure is above 0.
_MEASURED = re.compile(r"(?:[aeiou]|(?<=[^aeiou])y)(?:[^aeiouy]|(?<=[aeiou])y)")
ENGLISH = Analysis("english", "english-1", re.compile(_UAX29), _expand_english)
CODE = Analysis("code", "code-1", re.compile(_CODE), _expand_code)
