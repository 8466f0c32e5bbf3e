"""The heuristic judge: how much of a nugget's telling terms stand close together in a chunk.

Lexical and blind to meaning: it takes a reworded fact for an absent one and a contradiction in the same words for
support. It runs a pipeline without a key; it does not make a benchmark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

THRESHOLD = 0.6
"""Share of a nugget's weight that must stand in one window."""
TELLING = 1.5
"""Weight that must stand in the window at least, in rare words: a nugget of two everyday words supports nothing."""
WINDOW = 8
"""Lines of a window."""
LONGEST_QUOTE = 400
"""Characters of a quote."""

_SPREAD_COST = 0.02  # share of the weight that each line between the first and the last term costs
_WORD_CAP = 4.0
_IDENTIFIER_WEIGHT = 1.5
_NUMBER_WEIGHT = 1.5
_NAMED_IN_REASON = 8

_TOKEN = re.compile(r"[^\W\d][\w$]*(?:-[^\W_][\w$]*)*|\d[\d_,]*(?:\.\d+)*")
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
# Where a token's parts meet: `snake_case`, `kebab-case`, `camelCase`, `HTMLParser`, `utf8`. Other scripts stay whole.
_JOINT = re.compile(r"[_$-]+|(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_VERSION = re.compile(r"^[vV](\d+(?:\.\d+)*)$")
_STOPWORDS_LIST = """
a an the and or but if then else of to in on at by for from with without as into onto over under is are was were be
been being am do does did doing done has have had having will would shall should can could may might must not no nor
it its this that these those there here he she they them his her their you your we our i me my who whom which what
when where why how all any each every some such same so than too very just only also more most other another own one
first because since while until before after again once about between through during above below up down out off etc
e g ie eg s t don doesn isn aren won let lets get gets got like way thing things need needs needed want wants use
used uses using go goes look looks see follow follows following below make makes made new code instead via per still
even much many well now whether however
"""
_STOPWORDS = frozenset(_STOPWORDS_LIST.split())


@dataclass(frozen=True)
class Term:
    """A term of a nugget: its key in a chunk's terms, how it is shown in a reason, and its kind."""

    key: str
    shown: str
    kind: str  # identifier, number or word


@dataclass(frozen=True)
class Match:
    """How well a chunk holds a nugget: the share of weight in the best window, and the lines that hold it.

    `telling` says whether what was matched is rare enough to mean anything.
    """

    score: float
    telling: bool
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    start_line: int
    end_line: int


class PooledTexts:
    """The texts of a pool: how common each wanted term is, and on which lines of each text it stands.

    `texts` holds every pooled text by content hash, `wanted` for the texts that are to be judged the nuggets to judge
    them for. Each text is read once; only the terms of its own nuggets are kept with their lines.
    """

    def __init__(self, texts: Mapping[str, str], wanted: Mapping[str, Iterable[str]]) -> None:
        self.size = len(texts)
        keys = {
            content_hash: frozenset(term.key for nugget in set(nuggets) for term in nugget_terms(nugget))
            for content_hash, nuggets in wanted.items()
        }
        vocabulary = frozenset().union(*keys.values())
        self.frequency: dict[str, int] = dict.fromkeys(vocabulary, 0)
        self.lines: dict[str, dict[str, list[int]]] = {}
        for content_hash, text in texts.items():
            lines = term_lines(text, vocabulary)
            for key in lines:
                self.frequency[key] += 1
            if content_hash in keys:
                self.lines[content_hash] = {key: found for key, found in lines.items() if key in keys[content_hash]}

    def weight(self, term: Term) -> float:
        """A term's weight: its rarity in the pool, for words capped, for identifiers and numbers raised.

        Words are capped because the rarest words of an answer are its talk, not its facts.
        """
        rarity = self._rarity(self.frequency.get(term.key, 0))
        if term.kind == "word":
            return min(rarity, _WORD_CAP)
        return min(rarity, 1.5 * _WORD_CAP) * (_IDENTIFIER_WEIGHT if term.kind == "identifier" else _NUMBER_WEIGHT)

    def _rarity(self, frequency: int) -> float:
        """The inverse document frequency of BM25 in Lucene's form."""
        return math.log(1 + (self.size - frequency + 0.5) / (frequency + 0.5))

    def match(self, nugget: str, content_hash: str) -> Match:
        """Find the window of a text that holds most of a nugget."""
        terms = nugget_terms(nugget)
        weights = {term.key: self.weight(term) for term in terms}
        total = sum(weights.values())
        lines = self.lines[content_hash]
        found = {term.key: lines[term.key] for term in terms if term.key in lines}
        if not total or not found:
            return Match(0.0, False, (), tuple(term.shown for term in terms), 0, 0)
        start, end, keys = _best_window(found, weights)
        weight = sum(weights[key] for key in keys)
        return Match(
            score=weight / total,
            telling=weight >= TELLING * min(self._rarity(1), _WORD_CAP),
            matched=tuple(term.shown for term in terms if term.key in keys),
            missing=tuple(term.shown for term in terms if term.key not in keys),
            start_line=start,
            end_line=end,
        )


def _best_window(found: Mapping[str, Sequence[int]], weights: Mapping[str, float]) -> tuple[int, int, frozenset[str]]:
    """The lines (first, last) of at most WINDOW lines that hold most weight of distinct terms close together."""
    events = sorted({(line, key) for key, lines in found.items() for line in lines})
    total = sum(weights.values())
    best: tuple[float, int, int] = (-1.0, 0, 0)
    inside: dict[str, int] = {}
    weight, first = 0.0, 0
    for line, key in events:
        inside[key] = inside.get(key, 0) + 1
        weight += weights[key] if inside[key] == 1 else 0.0
        # Drop what has fallen out of the window, and what stands again further on.
        while events[first][0] <= line - WINDOW or inside[events[first][1]] > 1:
            gone = events[first][1]
            inside[gone] -= 1
            weight -= weights[gone] if inside[gone] == 0 else 0.0
            first += 1
        spread = line - events[first][0]
        candidate = (round(weight - _SPREAD_COST * total * spread, 9), -spread, -events[first][0])
        if candidate > best:
            best, span = candidate, (events[first][0], line)
    start, end = span
    return start, end, frozenset(key for line, key in events if start <= line <= end)


@lru_cache(maxsize=65_536)
def nugget_terms(nugget: str) -> tuple[Term, ...]:
    """The terms of a nugget, each once: identifiers whole, numbers, and the stems of its other words."""
    found: dict[str, Term] = {}
    start = 0
    for span in _CODE_SPAN.finditer(nugget):
        _add_terms(found, nugget[start : span.start()], code=False)
        _add_terms(found, span[1], code=True)
        start = span.end()
    _add_terms(found, nugget[start:], code=False)
    return tuple(found.values())


def _add_terms(found: dict[str, Term], text: str, *, code: bool) -> None:
    for match in _TOKEN.finditer(text):
        token = match[0].strip("_-") if not match[0][0].isdigit() else match[0]
        if not token:
            continue
        number = _number(token)
        if number is not None:
            # A lone digit in prose is a list's or a count's; in code or as a version it is a value.
            if code or len(number) > 1 or token[0] in "vV":
                found.setdefault(f"#{number}", Term(f"#{number}", token, "number"))
        elif _is_compound(token) and (code or "-" not in token):
            key = f"={_folded(token)}"
            found.setdefault(key, Term(key, token, "identifier"))
        else:
            for part in token.split("-"):
                for stem in _stems(part):
                    found.setdefault(stem, Term(stem, part, "word"))


def term_lines(text: str, wanted: frozenset[str]) -> dict[str, list[int]]:
    """The lines (from 0, by line feed) on which each wanted term stands."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(text.split("\n")):
        for token in set(_TOKEN.findall(line)):
            for key in _keys(token):
                if key in wanted:
                    found.setdefault(key, []).append(number)
    return found


@lru_cache(maxsize=262_144)
def _keys(token: str) -> tuple[str, ...]:
    """Every key under which a token of a chunk can be found: number, whole identifier, stems of its parts."""
    if token[0].isdigit():
        number = _number(token)
        return () if number is None else (f"#{number}",)
    token = token.strip("_-$")
    version = _VERSION.match(token)
    keys = {f"#{version[1]}"} if version else set()
    if _is_compound(token):
        keys.add(f"={_folded(token)}")
        keys |= {f"#{part}" for part in _parts(token) if part.isdigit() and len(part) > 1}
        # `matSort` in `mat-sort-header`: a hyphenated name also holds its own pieces.
        keys |= {f"={_folded(piece)}" for piece in token.split("-") if _is_compound(piece)}
    keys.update(_stems(token))
    return tuple(sorted(keys))


def _number(token: str) -> str | None:
    """A number or version in one form (`2_000` and `2,000` are 2000, `v17` is 17), None for anything else."""
    if version := _VERSION.match(token):
        return version[1]
    return token.replace("_", "").replace(",", "").rstrip(".") if token[0].isdigit() else None


def _parts(token: str) -> list[str]:
    return [part for part in _JOINT.split(token) if part]


def _is_compound(token: str) -> bool:
    return len(_parts(token)) > 1


def _folded(token: str) -> str:
    return token.strip("_-$").lower()


@lru_cache(maxsize=262_144)
def _stems(token: str) -> tuple[str, ...]:
    """Stems of the parts of a token, without stop words, digits and single letters."""
    parts = (part.lower() for part in _parts(token))
    return tuple({_stem(part) for part in parts if len(part) > 1 and not part.isdigit() and part not in _STOPWORDS})


@lru_cache(maxsize=262_144)
def _stem(word: str) -> str:
    return _stemmer().stemWord(word)


@lru_cache(maxsize=1)
def _stemmer():  # type: ignore[no-untyped-def]  # PyStemmer has no types
    import Stemmer

    return Stemmer.Stemmer("english")


def supports(match: Match) -> bool:
    """Whether a match counts as support."""
    return match.telling and match.score >= THRESHOLD


def reason(match: Match) -> str:
    """A verdict's reason in words: the share of weight, what was matched, and what is missing."""

    def shown(names: Sequence[str]) -> str:
        rest = len(names) - _NAMED_IN_REASON
        return ", ".join(names[:_NAMED_IN_REASON]) + (f" and {rest} more" if rest > 0 else "") if names else "nothing"

    common = "" if match.telling or not match.matched else " (too common to tell)"
    where = f" within lines {match.start_line + 1} to {match.end_line + 1}" if match.matched else ""
    matched, missing = shown(match.matched), shown(match.missing)
    return f"{match.score:.0%} of the weight{where}: matched {matched}{common}; missing {missing}."


def quote(match: Match, text: str) -> str:
    """The lines of the best window, exactly as they stand in the text; long ones are cut at their end."""
    lines = text.split("\n")
    start = sum(len(line) + 1 for line in lines[: match.start_line])
    end = start + sum(len(line) + 1 for line in lines[match.start_line : match.end_line + 1]) - 1
    return text[start:end].strip()[:LONGEST_QUOTE].rstrip()
