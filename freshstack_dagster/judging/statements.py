"""The heuristic's writing: salient statements of an answer, and the smaller questions in a question.

No model and no understanding: sentences and lines of code are taken as they stand, and chosen by what they name. A
statement about the software names its identifiers, values and options; talk names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_NUGGETS = 5
FEWEST_NUGGETS = 2  # below it, sentences that assert something without naming anything are taken as well
MOST_CODE_FACTS = 2
MOST_SUB_QUESTIONS = 5
LONGEST = 400
"""Characters of a statement; longer ones are cut at a word."""

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,2}[.)]|\([a-z\d]{1,2}\))\s+")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+")
# No bracket inside brackets: a text of ten thousand opening ones is then still read in one pass.
_IMAGE = re.compile(r"!\[([^\[\]]*)\]\([^()]*\)")
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
_ADDRESS = re.compile(r"<?https?://[^\s>)]+>?")
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__|\*)(?=\S)([^*]{1,300}?)(?<=\S)\1(?![\w*])")
_CODE_SPAN = re.compile(r"`[^`\n]+`")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z`@\d\x00])")
_NOT_AN_END = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|no|fig)\.$", re.IGNORECASE)

# What names software: code spans, calls, flags, paths, snake_case, camelCase, dotted names, versions and other numbers.
_NAMED = re.compile(
    r"`[^`\n]+`"
    r"|(?<![\w-])--?[a-z][\w-]+"
    r"|[@$]?\b[A-Za-z_][\w$]*(?:[./:]{1,2}[A-Za-z_][\w$-]*)+"
    r"|\b[A-Za-z_]\w*\(\)?"
    r"|\b[A-Za-z]+_\w+"
    r"|\b[a-z]+[A-Z]\w*|\b[A-Z][a-z]+[A-Z]\w*"
    r"|\bv\d+(?:\.\d+)*\b|\b\d+(?:[._,]\d+)+\b|\b\d{2,}\b"
)
_IDENTIFIER = re.compile(r"[@$]?[A-Za-z_][\w$]*(?:-[A-Za-z0-9_]+)*")
_KEYWORD_LIST = """
abstract and as async await bool break case catch class const continue def default del do echo elif else end enum
export extends extern false final finally fn for foreach from func function if implements import in int interface is
lambda let match mut namespace new nil none not null number or package pass private protected pub public raise
readonly require return self static str string struct super switch this throw true try type undefined use using var
void while with yield print console log
"""
_KEYWORD = frozenset(_KEYWORD_LIST.split())
_ASSERTS = re.compile(
    r"\b(?:must|need(?:s|ed)?|should|require[sd]?|instead|deprecated|removed|renamed|replaced?|default|only|never|always"
    r"|because|since|returns?|raises?|throws?|set|add|use[sd]?|call(?:s|ed)?|pass(?:es|ed)?|change[sd]?|import|install"
    r"|enable[sd]?|disable[sd]?|means|cause[sd]?|can(?:not|'t)|(?:does|do|is|are) not|ha(?:s|ve) to"
    r"|before|after|without|no longer|supports?|allows?|provide[sd]?)\b",
    re.IGNORECASE,
)
_TALK = re.compile(
    r"\b(?:hope (?:this|it|that)|thanks?|please|good luck|cheers|let me know|working example"
    r"|see (?:the |also )?(?:here|docs?|documentation|this|below|above)|have a look|take a look|look at|read more"
    r"|for more|more (?:info|details)|edit\b"
    r"|update:|I (?:think|guess|suggest|believe|found|had|was|have|am|did|tried|got|would|recommend)"
    r"|in my (?:case|opinion)"
    r"|stackblitz|demo|tutorials?|other answer|your question|you(?:'re| are) (?:right|welcome))",
    re.IGNORECASE,
)
_LEANS = re.compile(
    r"^\W*(?:this|that|these|those|it|they|he|so|then|also|here|which|but|and|instead|e\.g)\b", re.IGNORECASE
)
_ERROR_LINE = re.compile(
    r"(?:\b\w*(?:Error|Exception|Warning|Failure|Overflow)\b|\b(?:error|fatal|warning|panic)\b\s*[:\[]"
    r"|\bcannot\b|\bcan't\b|\bcould not\b|\bnot found\b|\bundefined\b|\bundeclared\b|\bno such\b|\bis not\b"
    r"|\b[A-Z]{1,4}\d{3,}\b)"
)
_HALF_LINE = re.compile(r"[({\[<,]$|^[)}\]]|=>\s*\{?$")  # what it says stands on other lines
_STACK_LINE = re.compile(r"^\s*(?:at |File \"|in |\||│|\^|~)|node_modules|^\s*\d+ [│|]")


@dataclass(frozen=True)
class Block:
    """A piece of a text: prose (a paragraph, list item or heading) or code (the lines of a fence)."""

    text: str
    code: bool
    heading: bool = False


def blocks(text: str) -> list[Block]:
    """Split a text with code in fences into prose and code, in order. An unclosed fence runs to the end."""
    found: list[Block] = []
    prose: list[str] = []
    code: list[str] | None = None
    fence = ""

    def close_prose() -> None:
        joined = _plain(" ".join(prose))
        if joined:
            found.append(Block(joined, code=False))
        prose.clear()

    for raw in text.replace("\r\n", "\n").split("\n"):
        line = re.sub(r"^\s{0,3}(?:> ?)+", "", raw)
        opened = _FENCE.match(line)
        if code is not None:
            if opened and opened[1].startswith(fence) and not line.strip().strip(fence[0]):
                found.append(Block("\n".join(code), code=True))
                code = None
            else:
                code.append(line)
        elif opened:
            close_prose()
            fence, code = opened[1], []
        elif _HEADING.match(line):
            close_prose()
            found.append(Block(_plain(_HEADING.sub("", line)), code=False, heading=True))
        elif not line.strip():
            close_prose()
        elif _LIST_ITEM.match(line):
            close_prose()
            prose.append(_LIST_ITEM.sub("", line))
        else:
            prose.append(line.strip())
    close_prose()
    if code:
        found.append(Block("\n".join(code), code=True))
    return found


def sentences(prose: str) -> list[str]:
    """Split a paragraph into sentences; a full stop inside a code span, a version or an abbreviation ends none."""
    masked = _CODE_SPAN.sub(lambda span: "\x00" * len(span[0]), prose)
    found, start = [], 0
    for end in _SENTENCE_END.finditer(masked):
        if not _NOT_AN_END.search(masked[start : end.start()]):
            found.append(prose[start : end.start()].strip())
            start = end.end()
    found.append(prose[start:].strip())
    return [sentence for sentence in found if sentence]


def named(text: str) -> list[str]:
    """What a text names: identifiers, options, versions and numbers, each once, lower case, in order."""
    found: dict[str, None] = {}
    for match in _NAMED.finditer(text):
        for name in _IDENTIFIER.findall(match[0]) or [match[0]]:
            if name.lower() not in _KEYWORD:
                found[name.strip("`").lower()] = None
    return list(found)


def salient_statements(question: str, answer: str) -> list[str]:
    """The statements of an answer that a grader would look for: 1 to 4, in the answer's order.

    Sentences that name software or assert something about it, and, where sentences are few, lines of code that bring in
    names which the question does not have. A sentence that leads to code ("change it as follows:") takes the telling
    line with it.
    """
    asked = set(named(question)) | {word.lower() for word in _IDENTIFIER.findall(question)}
    pieces = blocks(answer)
    scored: list[tuple[float, int, str]] = []
    code_facts: list[tuple[float, int, str]] = []
    for place, piece in enumerate(pieces):
        if piece.code:
            code_facts += [(score, place, line) for score, line in _code_lines(piece.text, asked)[:MOST_CODE_FACTS]]
            continue
        if piece.heading:
            continue
        own = sentences(piece.text)
        for number, sentence in enumerate(own):
            statement = sentence.rstrip(" :")
            if number == len(own) - 1 and sentence.endswith(":") and place + 1 < len(pieces) and pieces[place + 1].code:
                # "Change it as follows:" says nothing by itself; "Pass `limit` to `open`:" does.
                lead = f"{statement}: " if named(statement) else "In code: "
                statement = f"{lead}`{_telling_line(pieces[place + 1].text, asked)}`"
            if statement:
                scored.append((_salience(statement, asked), place * 1000 + number, statement))
    by_salience = sorted(scored, key=lambda entry: (-entry[0], entry[1]))
    best = [entry for entry in by_salience if entry[0] >= 2][:MOST_NUGGETS]
    covered = {name for _, _, sentence in best for name in named(sentence)}
    for score, place, line in sorted(code_facts, key=lambda entry: (-entry[0], entry[1])):
        taken = sum(statement.startswith("In code: ") for _, _, statement in best)
        new = [name.lower() for name in _IDENTIFIER.findall(line) if name.lower() not in covered | asked | _KEYWORD]
        if new and taken < MOST_CODE_FACTS and len(best) < MOST_NUGGETS:
            best.append((score, place * 1000, f"In code: `{line}`"))
            covered |= set(new)
    if len(best) < FEWEST_NUGGETS:
        best += [entry for entry in by_salience if 1 <= entry[0] < 2][: FEWEST_NUGGETS - len(best)]
    if not best:
        # An answer always yields a nugget: the least talkative sentence, else its first line of code, else itself.
        rest = scored or code_facts or [(0.0, 0, " ".join(answer.split()) or "(empty answer)")]
        best = [max(rest, key=lambda entry: (entry[0], -entry[1]))]
    in_order = sorted(best, key=lambda entry: entry[1])
    return _distinct(statement for _, _, statement in in_order)


def smaller_questions(title: str, body: str) -> list[str]:
    """The title, the lines of error messages and the interrogative sentences of a question: 1 to 5, in that order."""
    errors, questions = [], []
    for piece in blocks(body):
        if piece.code:
            errors += [line for line in map(str.strip, piece.text.split("\n")) if _is_error(line)]
        else:
            for sentence in sentences(piece.text):
                if sentence.endswith("?") and len(sentence.split()) >= 4:
                    questions.append(sentence)
                elif _is_error(sentence):
                    errors.append(sentence)
    chosen = _distinct([" ".join(title.split()), *_distinct(errors)[:2], *questions])
    return chosen[:MOST_SUB_QUESTIONS] or ["(empty question)"]


def _is_error(line: str) -> bool:
    return (
        12 <= len(line) <= 300
        and not line.endswith(":")
        and bool(_ERROR_LINE.search(line))
        and not _STACK_LINE.search(line)
    )


def _plain(prose: str) -> str:
    """Markdown prose without links, emphasis and line breaks; code spans stay."""
    prose = _LINK.sub(r"\1", _IMAGE.sub("", prose))
    # Every second piece is a code span, which is not Markdown: `__name__` is a name, not an emphasis.
    pieces = re.split(r"(`[^`\n]+`)", prose)
    pieces[::2] = [_EMPHASIS.sub(r"\2", _ADDRESS.sub("", piece)).replace("\\_", "_") for piece in pieces[::2]]
    return " ".join("".join(pieces).split())


def _salience(sentence: str, asked: set[str]) -> float:
    """How much a sentence states: what it names (more if the question does not), and whether it asserts something."""
    words = sentence.split()
    names = named(sentence)
    if sentence.endswith("?") or len(words) < 4 or len(sentence) > LONGEST:
        return 0.0
    score = min(len(names), 3) + min(sum(name not in asked for name in names), 2)
    score += bool(_ASSERTS.search(sentence))
    score -= 2 * bool(_TALK.search(sentence)) + bool(_LEANS.match(sentence))
    return score - (len(words) > 50)


def _code_lines(code: str, asked: set[str]) -> list[tuple[float, str]]:
    """Lines of code by how many names they bring in that the question does not have, most first."""
    scored = []
    for number, raw in enumerate(code.split("\n")):
        line = " ".join(raw.split())
        new = {name.lower() for name in _IDENTIFIER.findall(line)} - _KEYWORD - asked
        comment = line.startswith(("//", "# ", "/*", "*", "<!--"))
        if new and 8 <= len(line) <= 160 and not comment and not _HALF_LINE.search(line.rstrip(",;")):
            # A call, an assignment or an option says more than a bare name.
            says = 1.0 * bool(re.search(r"[(=:]", line))
            scored.append((min(len(new), 3) + says, -number, line.rstrip(",;").rstrip()))
    return [(score, line) for score, _, line in sorted(scored, reverse=True)]


def _telling_line(code: str, asked: set[str]) -> str:
    """The line of a block of code that says most; its longest line if none brings in a new name."""
    if lines := _code_lines(code, asked):
        return lines[0][1]
    return max((" ".join(line.split()) for line in code.split("\n")), key=len)


def _distinct(statements: Iterable[str]) -> list[str]:
    found: dict[str, str] = {}
    for statement in statements:
        text = " ".join(statement.split())
        if text:
            found.setdefault(text.casefold(), text)
    return _cut(list(found.values()))


def _cut(statements: Sequence[str]) -> list[str]:
    """No statement longer than a reply may hold."""
    return [text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..." for text in statements]
