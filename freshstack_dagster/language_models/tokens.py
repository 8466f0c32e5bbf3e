"""How many tokens a prompt will be, before a provider says so."""

from __future__ import annotations

import json
import math

from freshstack_dagster.language_models.request import Request

# Tokens of a provider for each cl100k_base token on prose and code, rounded up; others count close to cl100k_base.
_RATIO = {"anthropic": 1.3}
# What the chat format adds to a prompt: roles, separators.
_FRAME_TOKENS = 16
# How far the true count may lie above the estimate; the reservation of a call must not be lower than its bill.
_MARGIN = 1.15


def estimate_tokens(text: str, model: str = "") -> int:
    """Tokens of `text` for `provider:model`: counted with cl100k_base and scaled by what the provider is known for."""
    ratio = _RATIO.get(model.split(":", 1)[0], 1.0)
    return math.ceil(_count(text) * ratio)


def estimate_request(request: Request, model: str = "", *, schema: bool = True) -> int:
    """Tokens in of a request: system and user text, and the schema where it is sent along."""
    tokens = estimate_tokens(request.system, model) + estimate_tokens(request.user, model) + _FRAME_TOKENS
    return tokens + (estimate_tokens(_schema_text(request), model) if schema else 0)


def upper_bound(request: Request, model: str = "") -> int:
    """Tokens in of a request with a margin, for reserving its price."""
    return math.ceil(estimate_request(request, model) * _MARGIN)


def _schema_text(request: Request) -> str:
    return json.dumps(request.schema, ensure_ascii=False)


def _count(text: str) -> int:
    try:
        from freshstack_dagster.corpus.tokens import count_tokens
    except ImportError:
        # Without a tokenizer: code and prose have three to four bytes a token.
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)
    # Half a surrogate pair is no text that a tokenizer takes.
    return count_tokens(text.encode("utf-8", "replace").decode("utf-8"))
