"""Any endpoint that speaks OpenAI's chat completions: vLLM, Ollama, Cohere, llama.cpp, a gateway."""

from __future__ import annotations

from freshstack_dagster.language_models.providers.openai import OpenAIChat


class CompatibleChat(OpenAIChat):
    """Chat completions at `base_url`; a key only if `api_key_env` names one; no batch API."""

    default_key_env = None
    default_base_url = None
    base_url_env = None
    # The older name, which all of these servers know.
    max_tokens_name = "max_tokens"
    has_batches = False
