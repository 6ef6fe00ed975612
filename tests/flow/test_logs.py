"""What a worker writes to its log while things go wrong: who is to mend it, never whose key or whose words."""

from pathlib import Path

import msgspec
import pytest

from gateway import logs
from gateway.errors import UpstreamFailed
from gateway.tasks import Tasks
from tests.live import live, settings
from tests.waiting import until
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

SECRET = "sk-upstream-0123456789abcdef"
WORDS = "my knee hurts since tuesday"
WHOLE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


class Failing:
    """The model `bad` fails, every other answers."""

    async def answer(self, asked: Request) -> Answer:
        if asked.body["model"] == "bad":
            return self.failure()
        return Answer(body=msgspec.json.encode(WHOLE))

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error", body=b'{"error": {"message": "no"}}')


ROUTES: dict[str, dict[str, object]] = {
    "hedged": {"route": ["up1/bad", "up1/good"], "hedge": 5.0, "free": True},
    "voted": {"route": ["up1/bad", "up1/good", "up1/fine"], "strategy": "ensemble", "free": True},
}


@pytest.mark.parametrize("model", ROUTES)
async def test_neither_keys_nor_words_are_logged_when_attempts_fail(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback of an attempt that ran beside another held every variable: the upstream's key and the prompt."""
    async with wire_upstream(Failing(), Manner()) as up:
        upstream = {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": SECRET}
        chosen = settings(tmp_path, providers={"up1": upstream}, models={model: ROUTES[model]})
        async with live(chosen) as gateway:
            told = await gateway.chat(model=model, messages=[{"role": "user", "content": WORDS}])
            assert told.status == 200
    seen = "".join(capsys.readouterr())
    assert SECRET not in seen
    assert WORDS not in seen


async def test_a_fault_is_told_with_its_calls_and_without_their_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever mends it needs the line; whoever reads logs must not read requests. An expected failure is one line."""
    logs.configure()
    tasks = Tasks()

    async def fails(private: str) -> None:
        raise RuntimeError(f"broken after {len(private)}")

    async def refuses(private: str) -> None:
        raise UpstreamFailed(private)

    tasks.spawn(fails(WORDS), "one")
    tasks.spawn(refuses(WORDS), "two")
    await until(lambda: not len(tasks))
    seen = "".join(capsys.readouterr())
    assert "RuntimeError" in seen
    assert "raise RuntimeError" in seen
    assert "UpstreamFailed" in seen
    assert WORDS not in seen
