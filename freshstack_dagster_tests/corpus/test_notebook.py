"""Notebooks of every nbformat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from freshstack_dagster.corpus.notebook import NotANotebook, read_notebook

CODE = "from transformers import pipeline\n!pip install x\n%pip install y\n%%time\nx = 1"


def read(notebook: Any) -> str:
    return read_notebook(json.dumps(notebook)).text


def test_nbformat_4_in_the_layout_of_the_script_export() -> None:
    notebook = {
        "nbformat": 4,
        "metadata": {"language_info": {"name": "python"}},
        "cells": [
            {"cell_type": "markdown", "id": "a", "source": ["# Title\n", "\n", "text"]},
            {"cell_type": "raw", "id": "b", "source": "---\nfront: matter\n---"},
            {"cell_type": "code", "id": "a", "execution_count": 3, "source": CODE, "outputs": [{"text": "SECRET"}]},
            {"cell_type": "code", "source": [], "outputs": []},
            {"cell_type": "code", "execution_count": None, "source": ["y = 2"]},
        ],
    }
    assert read(notebook) == (
        "#!/usr/bin/env python\n# coding: utf-8\n\n# # Title\n# \n# text\n\n"
        f"# In[3]:\n\n\n{CODE}\n\n# In[ ]:\n\n\ny = 2\n"
    )


@pytest.mark.parametrize("nbformat", [2, 3])
def test_worksheets(nbformat: int) -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Part"},
        {"cell_type": "code", "language": "python", "prompt_number": 1, "input": ["a = 1\n", "b = 2"], "outputs": []},
        {"cell_type": "plaintext", "source": "words"},
    ]
    text = read({"nbformat": nbformat, "metadata": {}, "worksheets": [{"cells": cells[:2]}, {"cells": cells[2:]}]})
    assert text.endswith("# ## Part\n\n# In[1]:\n\n\na = 1\nb = 2\n\n# words\n")


def test_nbformat_1() -> None:
    text = read({"cells": [{"cell_type": "code", "code": "a = 1"}, {"cell_type": "text", "source": "words"}]})
    assert text.endswith("a = 1\n\n# words\n")


@pytest.mark.parametrize(
    ("metadata", "language", "comment"),
    [
        ({"language_info": {"name": "typescript"}}, "typescript", "// note"),
        ({"kernelspec": {"language": "C#", "name": ".net-csharp"}}, "csharp", "// note"),
        ({"kernelspec": {"name": "ir"}}, "r", "# note"),
        ({"language_info": "broken", "kernelspec": None}, "python", "# note"),
        (None, "python", "# note"),
    ],
)
def test_other_languages(metadata: Any, language: str, comment: str) -> None:
    cells = [{"cell_type": "markdown", "source": "note"}, {"cell_type": "code", "source": "let x = 1"}]
    notebook = read_notebook(json.dumps({"metadata": metadata, "cells": cells}))
    assert notebook.language == language
    assert comment in notebook.text
    assert "let x = 1" in notebook.text
    assert notebook.text.startswith("#!") == (language == "python")


def test_embedded_media_are_left_out() -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo" * 30
    text = read({"cells": [{"cell_type": "markdown", "source": f"![a]({image}) after"}]})
    assert "iVBOR" not in text
    assert "![a](data:image/png;base64,) after" in text


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    assert "x\ufffdy" in read_notebook('{"cells": [{"cell_type": "code", "source": "x\\ud800y"}]}').text


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"cells": 1}', "[" * 100_000, "1" * 10_000])
def test_what_is_no_notebook(text: str) -> None:
    with pytest.raises(NotANotebook):
        read_notebook(text)


def test_a_notebook_without_text_is_empty() -> None:
    assert read({"cells": [{"cell_type": "code", "source": " "}, None, 3]}) == ""
