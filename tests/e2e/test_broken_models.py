"""Engines that cannot start stand beside one that can: each says why, and the gateway answers through the others."""

import time
from pathlib import Path

import httpx
import msgspec

from engine.testing import write_checkpoint
from tests.e2e.process import PATIENCE, Process, new_key, serving


def test_a_broken_model_stops_its_engine_and_nothing_else(tmp_path: Path) -> None:
    """An operator who copied half a model, or named a wrong folder, must not take every other model down."""
    half = write_checkpoint(tmp_path / "half")
    weights = half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    engines = {
        "local": {"model": "sim"},
        "good": {"model": "tiny-random:gemma2", "quant": "int8", "kv_dtype": "fp8"},
        "half": {"model": str(half), "replicas": 2},
        "missing": {"model": str(tmp_path / "nowhere")},
    }
    settings = msgspec.json.encode({"engines": engines, "cache": {"mode": "off"}}).decode()
    with serving(tmp_path / "home", config=settings, ready="/health/live") as process:
        key = new_key(process)
        wait_for(process, "int8/float32", "incomplete metadata")
        answered = until_answered(process, key, "good/tiny-random:gemma2")
        assert answered.json()["usage"]["completion_tokens"] == 3
        for model in ("half/half", "missing/nowhere"):
            refused = ask(process, key, model)
            assert refused.status_code in (502, 503)
            assert refused.json()["error"]["type"] == "server_error"
        assert "config.json is missing" in ask(process, key, "missing/nowhere").text
        assert ask(process, key, "local/sim").status_code == 200
        wait_for(process, "nearhit is ready", "API key")  # a first start is of no use without it


def ask(process: Process, key: str, model: str) -> httpx.Response:
    body = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    return httpx.post(
        f"{process.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=30
    )


def until_answered(process: Process, key: str, model: str) -> httpx.Response:
    """The gateway connects to a ready engine a moment after the engine says so."""
    end = time.monotonic() + PATIENCE
    while (answer := ask(process, key, model)).status_code != 200:
        assert time.monotonic() < end, answer.text
        time.sleep(0.2)
    return answer


def wait_for(process: Process, *words: str) -> None:
    """Until the log has each of them."""
    end = time.monotonic() + PATIENCE
    while missing := [word for word in words if word not in process.log.read_text()]:
        assert time.monotonic() < end, f"never said: {missing}"
        time.sleep(0.1)
