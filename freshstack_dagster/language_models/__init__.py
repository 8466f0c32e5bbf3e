"""Language models that can be trusted and paid for: providers, strict reading, cache, batch, budget.

`Models` is what a stage uses: one object a run, one `Caller` a role. Nothing heavy is imported before a call is made.
"""

from __future__ import annotations

from freshstack_dagster.language_models.client import Caller, Models, run
from freshstack_dagster.language_models.request import Outcome, ReplyError, Request

__all__ = ["Caller", "Models", "Outcome", "ReplyError", "Request", "run"]
