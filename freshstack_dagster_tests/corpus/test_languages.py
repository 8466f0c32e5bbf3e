"""Languages by name of file."""

from __future__ import annotations

import pytest

from freshstack_dagster.corpus import languages
from freshstack_dagster.corpus.languages import grammar_of, language_of, notebook_language, parser_of


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("src/a.py", "python"),
        ("a.CPP", "cpp"),
        ("a.cs", "csharp"),
        ("docs/index.rst", "rst"),
        ("a.jsx", "javascript"),
        ("a.tsx", "tsx"),
        ("a.sql", "sql"),
        ("a.proto", "proto"),
        ("a.bat", "batch"),
        ("de.po", "po"),
        ("Dockerfile", "dockerfile"),
        ("docker/Dockerfile.gpu", "dockerfile"),
        ("Makefile", "make"),
        ("GNUmakefile", "make"),
        ("CMakeLists.txt", "cmake"),
        ("view.blade.php", "php"),
        ("go.mod", "gomod"),
        ("LICENSE", "text"),
        ("a.md", "markdown"),
        ("a.mdx", "mdx"),
        ("n.ipynb", "notebook"),
        ("no_extension", None),
        ("a.unheard-of", None),
        ("", None),
        (".", None),
        ("模型", None),
    ],
)
def test_language_by_path(path: str, language: str | None) -> None:
    assert language_of(path) == language


def test_every_language_has_a_grammar_or_is_known_to_have_none() -> None:
    named = {*languages._EXTENSIONS, *languages._FILE_NAMES, *languages._KERNELS.values()}
    assert not {n for n in named if grammar_of(n) is None} - languages.WITHOUT_GRAMMAR - {"mathematica"}
    assert not languages.WITHOUT_GRAMMAR - named
    assert len(languages._BY_EXTENSION) == sum(len(names.split()) for names in languages._EXTENSIONS.values())
    assert len(languages._BY_FILE_NAME) == sum(len(names.split()) for names in languages._FILE_NAMES.values())


@pytest.mark.parametrize(
    "language", sorted({*languages._EXTENSIONS, *languages._FILE_NAMES} - languages.WITHOUT_GRAMMAR)
)
def test_every_grammar_loads_and_parses_nothing(language: str) -> None:
    grammar = grammar_of(language)
    assert grammar
    assert parser_of(grammar).parse(b"x") is not None


def test_languages_of_kernels() -> None:
    assert notebook_language("C#") == "csharp"
    assert notebook_language(" Python ") == "python"
    assert notebook_language("") is None
    assert grammar_of("wolfram") is None
    with pytest.raises(LookupError):
        parser_of("no such grammar")
