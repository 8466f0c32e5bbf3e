"""Pages that stand in the repository are those that the code makes, and every setting is described."""

from __future__ import annotations

import runpy

import pytest

from freshstack_dagster import settings
from freshstack_dagster_tests.conftest import PROJECT

PAGES = runpy.run_path(str(PROJECT / "docs" / "pages.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_made_page_is_up_to_date(name: str):
    assert (PROJECT / "docs" / name).read_text() == PAGES[name](), "run `python docs/pages.py`"


def test_every_setting_is_described():
    models = [
        value for value in vars(settings).values() if isinstance(value, type) and issubclass(value, settings.Model)
    ]
    lacking = [
        f"{model.__name__}.{name}"
        for model in models
        if model not in (settings.Model, settings.Places)
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert not lacking
    assert len(models) > 10
