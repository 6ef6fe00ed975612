"""The engine without the gateway: as a library, as commands, on a file of requests."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import EngineFailed, GenerateRequest, Options, SamplingParams, client, open_engine, options
from engine.__main__ import main
from engine.api import Delta, EngineUsage, Overloaded, TokenLogprob
from engine.batch_file import Progress, run
from engine.locate import locate
from engine.models import loader
from engine.openai_body import Whole, Wrong, answer, request
from engine.process import CANNOT_LOAD
from engine.sim import SimEngine
from engine.testing import fork_process, until, write_checkpoint

DOCS = Path(__file__).parents[3] / "docs" / "engine.md"


def line(id: str, **changes: Any) -> str:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"Question {id}"}], "max_tokens": 4}
    record = {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body | changes}
    return msgspec.json.encode(record).decode() + "\n"


def records(path: Path) -> dict[str, Any]:
    return {one["custom_id"]: one for one in map(msgspec.json.decode, path.read_bytes().splitlines())}


async def sim(**settings: Any) -> SimEngine:
    engine = SimEngine(**settings)
    await engine.start()
    return engine


async def test_every_line_is_answered_once_whatever_it_is(tmp_path: Path) -> None:
    """A batch of a million lines must not be lost to one bad one."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = [
        '{"custom_id": "no url"}\n',
        "nonsense\n",
        line("unknown", banana=1),
        line("range", temperature=-1),
        line("type", max_tokens="x"),
    ]
    source.write_text(line("a") + "\n" + "".join(bad) + line("b", stop=["x"], seed=3))
    seen: list[Progress] = []
    found = await run(await sim(), source, target, show=seen.append)
    answers = records(target)
    assert (found.done, found.failed, found.skipped) == (7, 5, 0)
    assert [one.done for one in seen] == list(range(1, 8))
    assert set(answers) == {"a", "b", "no url", "line-4", "unknown", "range", "type"}
    assert answers["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert answers["unknown"]["error"]["code"] == "unsupported_parameter"
    assert "banana" in answers["unknown"]["error"]["message"]
    assert {one["response"]["status_code"] for one in answers.values()} == {200, 400}


async def test_what_would_be_so_anyway_may_be_said(tmp_path: Path) -> None:
    """Files written for OpenAI say `n: 1` and `stream: false` in every line: all of them were refused."""
    anyway: dict[str, Any] = {"n": 1, "best_of": 1, "stream": False, "store": False, "echo": False, "suffix": None}
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    plain = line("said", **anyway, modalities=["text"], metadata={"of": "me"}, user="me")
    source.write_text(plain + line("two", n=2) + line("streamed", stream=True))
    await run(await sim(), source, target)
    refused = {id: one["error"]["message"] for id, one in records(target).items() if one["error"]}
    assert refused == {"two": "n is not supported here.", "streamed": "stream is not supported here."}


@pytest.mark.usefixtures("forked")
async def test_forms_tools_and_scores_are_honoured(tmp_path: Path) -> None:
    """What a batch is mostly asked for: records of a schema, calls, probabilities. They were refused by name.

    By two processes: `open_engine` promises an engine, and whoever asks must not see that there are several.
    """
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    wanted: dict[str, dict[str, Any]] = {
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        "object": {"response_format": {"type": "json_object"}},
        "tool": {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "scores": {"logprobs": True, "top_logprobs": 2, "logit_bias": {"65": 100}, "temperature": 0},
        "nulls": {"response_format": None, "stop": None, "temperature": None, "tools": None},
        "bad": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objct"}}}},
    }
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(id, max_tokens=200, **changes) for id, changes in wanted.items()))
    more, further = tmp_path / "more.jsonl", tmp_path / "further.jsonl"
    more.write_text("".join(line(str(at), temperature=0) for at in range(8)))
    async with open_engine("tiny-random:qwen3", Options(threads=1, memory=2**20), replicas=2) as engine:
        request = GenerateRequest(id="a", text="Hello", sampling=SamplingParams(max_tokens=4, temperature=0))
        assert [delta async for delta in engine.generate(request)][-1].usage is not None
        await run(engine, source, target)
        assert (await run(engine, more, further)).completion_tokens == 32
    answers = records(target)
    assert [id for id, one in answers.items() if one["error"]] == ["bad"], answers
    said = {id: one["response"]["body"]["choices"][0] for id, one in answers.items() if id != "bad"}
    assert msgspec.json.decode(said["schema"]["message"]["content"])["a"] in (1, 2)
    written = json.loads(said["object"]["message"]["content"])  # noqa: TID251 - random weights write numbers of any size
    assert isinstance(written, dict)
    (call,) = said["tool"]["message"]["tool_calls"]
    assert (call["function"]["name"], said["tool"]["finish_reason"]) == ("f", "tool_calls")
    assert said["tool"]["message"]["content"] is None
    assert msgspec.json.decode(call["function"]["arguments"])["a"] in (1, 2)
    scored = said["scores"]["logprobs"]["content"]
    assert (len({one["token"] for one in scored}), len(scored[0]["top_logprobs"])) == (1, 2)
    assert said["nulls"]["message"]["content"] is not None
    assert answers["bad"]["error"]["message"]


async def test_a_line_that_never_ends_well_is_not_the_end_of_the_file(tmp_path: Path) -> None:
    """One request for which the model computes nonsense would stop every later run at the same place."""

    class Broken(SimEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
            bad = request.id == "batch-2"
            async for delta in super().generate(request):
                yield msgspec.structs.replace(delta, finish_reason="error") if bad and delta.finish_reason else delta

    async def sleep(_: float) -> None: ...

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(str(at)) for at in range(3)))
    engine = Broken()
    await engine.start()
    found = await run(engine, source, target, sleep=sleep)
    assert (found.done, found.failed) == (3, 1)
    assert records(target)["1"]["response"]["status_code"] == 500


async def test_an_interrupted_batch_goes_on(tmp_path: Path) -> None:
    """Hours of work must survive a power cut: what is answered stays, half a line is done again."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(str(at)) for at in range(6)))
    await run(await sim(), source, target)
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(lines[:3]) + lines[3][:20])
    found = await run(await sim(), source, target)
    assert (found.done, found.skipped) == (3, 3)
    assert len(records(target)) == 6
    assert len(target.read_text().splitlines()) == 6


@pytest.mark.parametrize("there", ["my notes", "my notes\n", line("a"), '{"id":"batch_req_1","custom_id":"a"}\n', "\n"])
async def test_somebody_elses_file_is_not_written_to(tmp_path: Path, there: str) -> None:
    """A mistyped `--out` emptied the file it named: notes, a data set, another program's results."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a"))
    target.write_text(there)
    with pytest.raises(FileExistsError, match="is no answer of a batch"):
        await run(await sim(), source, target)
    assert target.read_text() == there


async def test_the_requests_are_not_taken_for_their_answers(tmp_path: Path) -> None:
    """`--out` naming the file of requests cut it off at its first odd line and called the rest answered."""
    source = tmp_path / "in.jsonl"
    source.write_text(line("a") + "nonsense\n" + line("b"))
    before = source.read_text()
    with pytest.raises(FileExistsError, match="another file"):
        await run(await sim(), source, source)
    assert source.read_text() == before


async def test_two_lines_of_one_name_are_both_told_of_and_neither_is_lost(tmp_path: Path) -> None:
    """Answers are known by name: of two lines with one name, or named as a broken one, a later run left one out."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a") + line("a") + line("line-4") + "nonsense\n" + line(""))
    await run(await sim(), source, target)
    first = [msgspec.json.decode(one) for one in target.read_bytes().splitlines()]
    assert sorted((one["id"], one["error"] and one["error"]["code"]) for one in first) == [
        ("batch_req_1", None),
        ("batch_req_2", "invalid_line"),
        ("batch_req_3", None),
        ("batch_req_4", "invalid_line"),
        ("batch_req_5", "invalid_line"),
    ]
    for kept in range(5):  # whichever of them a kill left
        target.write_bytes(msgspec.json.encode(first[kept]) + b"\n")
        assert (await run(await sim(), source, target)).done == 4
        ids = [msgspec.json.decode(one)["id"] for one in target.read_bytes().splitlines()]
        assert sorted(ids) == [f"batch_req_{at}" for at in range(1, 6)]


async def test_a_file_of_a_windows_editor_is_read_whole(tmp_path: Path) -> None:
    """Its first line begins with a mark of the encoding and was refused as no JSON."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + line("a").replace("\n", "\r\n").encode())
    assert (await run(await sim(), source, target)).failed == 0


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"url": "/v1/completions", "tools": [{"function": {"name": "f"}}]}, "tools"),
        ({"url": "/v1/completions", "logprobs": True}, "logprobs"),
    ],
)
def test_what_would_change_nothing_is_refused(changes: dict[str, Any], param: str) -> None:
    """Asked for probabilities, calls or a schema like this, a file was answered as if nothing had been asked."""
    url = changes.pop("url", "/v1/chat/completions")
    said = {"messages": [{"role": "user", "content": "x"}]} if url == "/v1/chat/completions" else {"prompt": "x"}
    with pytest.raises(Wrong) as refused:
        request(url, {**said, **changes}, "name")
    assert refused.value.param == param


def test_legacy_scores_say_where_their_tokens_begin() -> None:
    """Who cuts a text by its tokens needs `text_offset`, which OpenAI's answers have and ours left out."""
    scores = [TokenLogprob(token=text, logprob=-1.0, top=[]) for text in ("ab", "c", "d")]
    whole = Whole(text="abcd", reasoning="", calls=[], logprobs=scores, last=Delta(finish_reason="stop"))
    body = answer("/v1/completions", "m", 1, whole, EngineUsage(prompt=1, completion=3))
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 2, 3]


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        (["requests.jsonl", "--max-tokens", "5"], "--max-tokens"),
        (["requests.jsonl", "--temperature", "0"], "--temperature"),
        (["a text", "--out", "answers"], "--out"),
        (["a text", "--in-flight", "3"], "--in-flight"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(said: list[str], flag: str, capsys: Any) -> None:
    """`generate FILE --max-tokens 5` wrote answers of any length: each line says its own, and nobody said so."""
    with pytest.raises(SystemExit):
        main(["generate", "demo", *said])
    assert flag in capsys.readouterr().err


class Moody(SimEngine):
    """Turns requests away a few times before it answers."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self.errors = errors
        self.most = self.now = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self.errors:
            raise self.errors.pop()
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async for delta in super().generate(request):
                yield delta
        finally:
            self.now -= 1


async def test_a_batch_waits_for_a_full_engine_and_gives_up_on_a_dead_one(tmp_path: Path) -> None:
    """At night nobody is there to start it again; and an engine that never comes back must not be asked for ever."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(str(at)) for at in range(30)))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    engine = Moody([Overloaded("full", retry_after=3), EngineFailed("restarting")])
    await engine.start()
    assert (await run(engine, source, target, in_flight=4, sleep=sleep)).done == 30
    assert sorted(slept) == [0.1, 3]
    assert engine.most == 4
    busy = Moody([Overloaded("full", retry_after=1) for _ in range(50)])
    await busy.start()
    assert (await run(busy, source, tmp_path / "busy.jsonl", in_flight=2, sleep=sleep)).done == 30
    dead = Moody([EngineFailed("dead") for _ in range(100)])
    with pytest.raises(EngineFailed):
        await run(dead, source, tmp_path / "other.jsonl", in_flight=2, sleep=sleep)


def test_options_survive_the_command_line() -> None:
    """A process is launched by flags: what does not come through them is silently the default."""
    wanted = Options(threads=2, queue=7, dtype="bfloat16", memory=64 * 2**20, chunk=32)
    import argparse

    parser = argparse.ArgumentParser()
    options.add(parser)
    assert options.given(parser.parse_args(options.arguments(wanted))) == wanted
    assert options.given(parser.parse_args([])) == Options()
    with pytest.raises(ValueError, match="--threads"):
        options.given(parser.parse_args(["--threads", "many"]))
    assert "float32|bfloat16" in parser.format_help()
    for flag in ("--threads 0", "--chunk 8", "--context 1", "--max-queue 0", "--draft-tokens 0", "--memory-mib -1"):
        with pytest.raises(ValueError, match=flag.split()[0]):
            options.given(parser.parse_args(flag.split()))


def test_options_by_name_are_read_from_text_and_none_is_ignored() -> None:
    """`serve run … threads=1` hands on text, which no replica started with, and what was misspelt changed nothing."""
    assert options.named({"threads": "2", "memory": 2**20, "graphs": "false", "quant": "int8"}) == Options(
        threads=2, memory=2**20, graphs=False, quant="int8"
    )
    with pytest.raises(ValueError, match=r"no option 'thraeds'. Known: threads"):
        options.named({"thraeds": 1})
    with pytest.raises(ValueError, match=r"^threads: "):
        options.named({"threads": "many"})


def test_plan_tells_bytes_and_ceilings(capsys: pytest.CaptureFixture[str]) -> None:
    """Who buys a machine wants to know before the download."""
    assert main(["plan", "tiny-random:qwen3", "--max-sequences", "2"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert found["kv_capacity_tokens"] == 2 * 2048
    one, many = (found[f"ceiling_decode_tokens_per_s_batch_{batch}_context_128"] for batch in (1, 16))
    assert 0 < one < many
    assert main(["plan", "/nowhere"]) == 1


@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_plan_counts_the_bits_it_was_asked_about(capsys: pytest.CaptureFixture[str], quant: str) -> None:
    """Fewer bits are asked for where memory is short; the plan told those of unrounded weights."""
    assert main(["plan", "demo", "--quant", quant, "--kv-dtype", "int8"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    loaded = loader.load(locate("demo"), "auto", None, quant)
    assert found["weights_bytes"] == pytest.approx(loaded.bytes, rel=0.02)
    assert found["kv_bytes_per_token"] == 576  # as docs/engine.md tells of the demo
    assert (found["quant"], found["kv_dtype"]) == (quant, "int8")


def test_plan_refuses_what_would_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for weights that this device cannot multiply is followed by a download for nothing."""
    assert main(["plan", "demo", "--quant", "fp8", "--device", "cpu"]) == 1
    assert "fp8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tensor-parallel", "3"], "among 3 processes"),
        (["--speculate", "ngrm"], "off, predicted, ngram, or a model"),
        (["--speculate", "tiny-random:qwen3"], "vocabulary or window differs"),
    ],
)
def test_plan_refuses_parts_and_guesses_that_would_not_start(
    capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    """It told bytes and speeds of an engine that ends at its start."""
    assert main(["plan", "demo", *flags]) == 1
    assert told in capsys.readouterr().err


def test_a_bench_of_single_tokens_has_no_gaps_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench --output-tokens 1`, which measures prompts alone, ended in a traceback."""
    assert main(["bench", "tiny-random:qwen3", "--output-tokens", "1", "--concurrency", "1", "--threads", "1"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["decode_tokens_per_s"], found["tpot_p50_ms"]) == (0.0, 0.0)
    assert found["prefill_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("chat_template.jinja", b"\xff\xfe"),
        ("generation_config.json", b'{"temperature": "hot"}'),
    ],
)
async def test_a_text_file_that_cannot_be_read_is_told_at_once(name: str, contents: bytes, tmp_path: Path) -> None:
    """Only who talks to a process uses it: the process came up, and its client waited half an hour for the text."""
    folder = write_checkpoint(tmp_path / "model")
    (folder / name).write_bytes(contents)
    process = fork_process(str(folder), tmp_path / "e.sock")
    made = client.EngineClient(str(folder), tmp_path / "e.sock")
    await made.start()
    assert await asyncio.wait_for(process.wait(), 60) == CANNOT_LOAD
    assert "temp" in made.stats().loading
    await made.stop()


@pytest.mark.usefixtures("forked")
async def test_a_process_that_cannot_load_is_told_by_its_status(tmp_path: Path) -> None:
    """A program of one's own must hear why its engine does not come, instead of waiting for it."""
    folder = write_checkpoint(tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes(b"{% if")
    with pytest.raises(EngineFailed, match=r"78: .*temp"):
        async with asyncio.timeout(60), open_engine(str(folder), Options(threads=1)):
            pass


async def test_files_that_nobody_understands_cost_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody thought of ended the task group it was in, and with it whoever had started the engine."""

    def odd(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(client, "load_text", odd)
    made = client.EngineClient("m", tmp_path / "x.sock")
    await made.start()
    await until(lambda: made.stats().loading == "odd", "the reason")
    await made.stop()


def test_the_documented_example_runs() -> None:
    """The first thing anybody does is to copy it."""
    text = DOCS.read_text("utf-8")
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip()
