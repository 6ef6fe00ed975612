"""The engine on Ray Serve: two replicas on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import asyncio, ray
from ray import serve
from engine.ray_serve import application

ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
app = application("tiny-random:qwen3", num_replicas=2, threads=1, memory=2**20)
handle = serve.run(app, route_prefix=None, logging_config={"log_level": "ERROR"})

async def one(at):
    asked = {"prompt": "Hello", "max_tokens": 6, "temperature": 0.0}
    stream = handle.options(stream=True).generate.remote(asked)
    return [delta async for delta in stream]

async def main():
    answers = await asyncio.gather(*(one(at) for at in range(6)))
    texts = {"".join(delta["text"] for delta in deltas) for deltas in answers}
    ends = {deltas[-1]["finish_reason"] for deltas in answers}
    replicas = serve.status().applications["default"].deployments["EngineReplica"].replica_states
    print("RESULT", len(texts), ends, replicas)

asyncio.run(main())
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.proof
def test_two_replicas_answer_alike(tmp_path: Path) -> None:
    """Beyond one machine nothing is home-made: what is ours must work where Ray puts it."""
    pytest.importorskip("ray", reason="ray is not installed: pip install nearhit[ray]")
    environment = os.environ | {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert told, done.stderr[-2000:]
    assert told[0].startswith("RESULT 1 {'length'}")
    assert "RUNNING" in told[0]
    assert ": 2" in told[0]
