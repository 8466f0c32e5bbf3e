"""What a set of requests will cost, before anything is paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshstack_dagster.language_models.cache import read_reply, reply_key
from freshstack_dagster.language_models.client import Models
from freshstack_dagster.language_models.providers import heuristic, replay
from freshstack_dagster.language_models.request import Request
from freshstack_dagster.language_models.tokens import estimate_request, estimate_tokens, upper_bound
from freshstack_dagster.settings import ModelRole

# Replies that must lie in the cache before their true sizes correct the estimate of the others.
_ENOUGH = 3
# Tokens of a sentence of technical prose, and of what JSON puts around a text in a list.
_SENTENCE, _ENTRY = 22, 4
# Tokens out of a whole reply, from what the prompts ask for: two to five sentences of reasoning and two to five
# sub-questions; an answer of at most 250 words, which models make good use of; a summary of one or two sentences.
_REPLY = {"sub_questions": 180, "closed_book_answer": 300, "nuggets": 150}
_SUMMARY = 12 + 3 * _SENTENCE // 2
_REPLY_OF_ANOTHER_TASK = 400
# For each document of a judging: its entry and a reason of one to three sentences, most often one or two; for each
# nugget its number, and for about one in fourteen (FreshStack, Table 3: 4.1 chunks a nugget support it, of some 60
# pooled) a quote of about 25 tokens.
_DOCUMENT, _NUGGET = 22 + 3 * _SENTENCE // 2, 4.5


@dataclass(frozen=True)
class Estimate:
    """What the requests of a role will take.

    `cached` have their reply already; `calls` are the others, each asked once, with their tokens and their price one by
    one and by batch (null if the model's price is unknown; the batch price is null too where there is no discount).
    `most_dollars` is the price if every reply is as long as it may be. `calibrated_on` is the number of cached replies
    whose true sizes corrected the estimate, 0 if there were too few.
    """

    role: str
    model: str
    requests: int
    cached: int
    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None
    batch_dollars: float | None
    most_dollars: float | None
    calibrated_on: int


def estimate(
    models: Models, name: str, role: ModelRole, requests: Sequence[Request], *, anew: bool = False
) -> Estimate:
    """Estimate the requests of a role: how many are in the cache, and tokens and dollars of the rest.

    With `anew` requests count as calls although their replies are in the cache: they stand for others of their size.

    Where a few of the same requests were answered before (a pilot), the ratio of their true tokens to the estimated
    ones corrects tokens in and out: a model may count tokens in its own way and think before it replies.
    """
    caller = models.role(name, role)
    if role.provider == "heuristic":
        return Estimate(name, caller.model, len(requests), 0, 0, 0, 0, 0.0, None, 0.0, 0)
    asked_as = replay.original(name, role) if role.provider == "replay" else role
    true_in = true_out = known_in = known_out = left_in = left_out = most_in = cached = calls = 0
    for key, request in {reply_key(asked_as, request, 1): request for request in requests}.items():
        tokens_in = estimate_request(request, caller.model)
        tokens_out = min(expected_reply(request), role.max_output_tokens)
        reply = read_reply(models.store, key)
        if reply is not None:
            cached += 1
            true_in, true_out = true_in + reply.input_tokens, true_out + reply.output_tokens
            known_in, known_out = known_in + tokens_in, known_out + tokens_out
        if reply is None or anew or role.cache == "refresh":
            calls += 1
            left_in, left_out = left_in + tokens_in, left_out + tokens_out
            most_in += upper_bound(request, caller.model)
    calibrated = cached if cached >= _ENOUGH and true_in and true_out else 0
    if calibrated:
        left_in, left_out = round(left_in * true_in / known_in), round(left_out * true_out / known_out)
    price = models.prices.of(caller.model)
    return Estimate(
        role=name,
        model=caller.model,
        requests=len(requests),
        cached=cached,
        calls=calls,
        input_tokens=left_in,
        output_tokens=left_out,
        dollars=None if price is None else price.dollars(left_in, left_out),
        batch_dollars=price.dollars(left_in, left_out, batch=True)
        if price is not None and price.batch_discount
        else None,
        most_dollars=None if price is None else price.dollars(most_in, calls * role.max_output_tokens),
        calibrated_on=calibrated,
    )


def expected_reply(request: Request) -> int:
    """Tokens out of a usual reply to a request, by its task and by what it asks about."""
    documents, nuggets = request.inputs.get("documents"), request.inputs.get("nuggets")
    if request.task == "support" and documents is not None and nuggets is not None:
        return round(len(documents) * (_DOCUMENT + _NUGGET * len(nuggets)))
    if request.task == "nuggets" and request.inputs:
        # As many nuggets, and as long, as the rules find statements in this very answer.
        rules = heuristic.answer(request) or {}
        return _SUMMARY + sum(estimate_tokens(text) + _ENTRY for text in rules["nuggets"])
    return _REPLY.get(request.task, _REPLY_OF_ANOTHER_TASK)
