"""`nearhit cache warm`: answers kept before anybody asks, from a file or from what was asked most.

Knows: the data plane as any client sees it, and the two control calls that plant answers and name questions. Does not
know: how lines are read and money is shared out (`gateway.warming`), anything inside the gateway.
"""

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
from cyclopts import Parameter
from msgspec import Struct

from gateway.cli import show
from gateway.cli.connection import Control, control, running
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.trying import base_url, own_key
from gateway.cli.wrong import Wrong
from gateway.settings import Settings
from gateway.warming import Bad, Done, Item, Purse, dollars, read
from policies.money import nano, usd

_TIMEOUT = 180.0
_TRIES = 3
_LONGEST_WAIT = 30.0
_SHOWN = 20
_decode = msgspec.json.Decoder().decode


class Given(Struct, frozen=True, kw_only=True):
    """Where questions go and on whose behalf. `fresh`: ask again even what is kept."""

    settings: Settings
    key: str
    at_once: int
    fresh: bool


class Tally(Struct, kw_only=True):
    """What became of the lines. `stopped`: why the rest was not tried."""

    planted: int = 0
    asked: int = 0
    kept_before: int = 0
    done_before: int = 0
    cost_usd: str = "0"
    bad: list[Bad] = []
    stopped: str | None = None


def warm_cache(  # noqa: PLR0913 - what a person may want to say
    file: Path | None = None,
    *,
    from_log: str | None = None,
    model: str = "chat",
    key: str | None = None,
    max_usd: str | None = None,
    limit: int = 1_000,
    at_once: Annotated[int, Parameter(help="Questions under way at once, 1 to 32.")] = 4,
    again: Annotated[bool, Parameter(help="Forget what an interrupted run has done.", negative="")] = False,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Fill the cache before it is asked. A run that was interrupted goes on where it stopped.

    Parameters
    ----------
    file
        One JSON object per line: {"prompt": …} asks the model, {"prompt": …, "answer": …} keeps that answer without
        asking. `messages` in place of `prompt` for more than one turn, `model` for another model.
    from_log
        In place of a file: since when (7d, or a date) to look for what was asked most; it is asked again.
    model
        What is asked where a line names no model.
    key
        API key whose scope is warmed (default: the one of `nearhit try`).
    max_usd
        Spend at most this much; needed with --from-log.
    limit
        With --from-log: how many questions at most.
    """
    if (file is None) == (from_log is None):
        show.line("give a file, or --from-log SINCE")
        return 2
    cap = _cap(max_usd)
    if not 1 <= at_once <= 32 or (from_log is not None and cap is None) or (max_usd is not None and cap is None):
        show.line("--at-once takes 1 to 32; --max-usd takes a plain amount such as 1.50 and is needed with --from-log")
        return 2
    settings = settings_of(options)
    if not running(settings):
        raise Wrong("no gateway runs on this home: start one with nearhit serve")
    given = Given(settings=settings, key=key or own_key(settings), at_once=at_once, fresh=from_log is not None)
    with control(settings) as gateway:
        lines = _lines(file, model) if file is not None else _logged(gateway, given, from_log or "", limit)
    done = Done(_marks(given, file, from_log))
    if again:
        done.forget()
    tally = asyncio.run(Warming(given, done, Purse(cap, at_once)).run(lines))
    if not tally.bad and tally.stopped is None:
        done.forget()
    _print(tally, json=options.json)
    return 1 if tally.bad or tally.stopped is not None else 0


def _cap(text: str | None) -> int | None:
    try:
        return None if text is None else max(0, nano(text))
    except ValueError:
        return None


def _lines(file: Path, model: str) -> list[Item | Bad]:
    try:
        return list(read(file, model))
    except OSError as error:
        raise Wrong(f"cannot read {file}: {error.strerror}") from error


def _logged(gateway: Control, given: Given, since: str, limit: int) -> list[Item | Bad]:
    body = {"key": given.key, "since": since, "limit": limit}
    found = gateway.ask("POST", "/api/v1/cache/asked", body=body)
    if found["left_out"]:
        why = "not asked in one plain message, or beyond this key or the limit"
        print(f"{found['left_out']} kept answers are left out: {why}", file=sys.stderr)
    return [
        Item(number=place, model=row["model"], messages=[{"role": "user", "content": row["prompt"]}])
        for place, row in enumerate(found["data"], 1)
    ]


def _marks(given: Given, file: Path | None, from_log: str | None) -> Path:
    """One file per source and key, so that two runs never take each other's lines for done."""
    source = str(file.resolve()) if file is not None else f"log {from_log}"
    name = hashlib.blake2b(f"{source}\n{given.key}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    return given.settings.home / "run" / f"warm-{name}"


class Warming:
    """One run: `at_once` workers on one list of lines."""

    def __init__(self, given: Given, done: Done, purse: Purse) -> None:
        self._given = given
        self._done = done
        self._purse = purse
        self._tally = Tally()
        self._alone = asyncio.Lock()
        self._seen = 0

    async def run(self, lines: list[Item | Bad]) -> Tally:
        waiting = iter(lines)
        home, headers = self._given.settings.home, {"authorization": f"Bearer {self._given.key}"}
        socket = httpx.AsyncHTTPTransport(uds=str(home / "run" / "admin.sock"))
        async with (
            httpx.AsyncClient(
                base_url=base_url(self._given.settings), timeout=_TIMEOUT, trust_env=False, headers=headers
            ) as data,
            httpx.AsyncClient(transport=socket, base_url="http://localhost", timeout=_TIMEOUT) as admin,
        ):
            await asyncio.gather(*(self._work(waiting, data, admin, len(lines)) for _ in range(self._given.at_once)))
        self._tally.cost_usd = usd(self._purse.spent)
        self._tally.bad.sort(key=lambda bad: bad.number)
        return self._tally

    async def _work(
        self, waiting: Iterator[Item | Bad], data: httpx.AsyncClient, admin: httpx.AsyncClient, total: int
    ) -> None:
        for item in waiting:
            if self._tally.stopped is not None:
                return
            self._seen += 1
            if isinstance(item, Bad):
                self._tally.bad.append(item)
            elif item.mark in self._done:
                self._tally.done_before += 1
            else:
                await self._one(item, admin if item.answer is not None else data)
            self._progress(total)

    async def _one(self, item: Item, client: httpx.AsyncClient) -> None:
        why = await (self._plant(item, client) if item.answer is not None else self._ask(item, client))
        if why is None:
            self._done.add(item.mark)
        elif self._tally.stopped is None:
            self._tally.bad.append(Bad(item.number, why))

    async def _plant(self, item: Item, admin: httpx.AsyncClient) -> str | None:
        body = {"key": self._given.key, "model": item.model, "messages": item.messages, "answer": item.answer}
        answer = await _send(admin, "/api/v1/cache/plant", body, {})
        if isinstance(answer, str):
            return answer
        if answer.status_code >= 400:
            return _problem(answer)
        if _decode(answer.content)["entry"] is None:
            return "the cache could not keep it now"
        self._tally.planted += 1
        return None

    async def _ask(self, item: Item, data: httpx.AsyncClient) -> str | None:
        """None when answered. A share of the cap that is too small is tried again with all that is left, one by one."""
        part = self._purse.take()
        if part != 0:
            answer = await self._put(item, data, part)
            if isinstance(answer, str) or _code(answer) != "max_cost_exceeded":
                return self._answered(answer)
        async with self._alone:
            part = self._purse.take(rest=True)
            answer = await self._put(item, data, part) if part else "the cap is reached"
            if not part or (isinstance(answer, httpx.Response) and _code(answer) == "max_cost_exceeded"):
                self._tally.stopped = "what is left of the cap is less than one more answer could cost"
            return self._answered(answer)

    async def _put(self, item: Item, data: httpx.AsyncClient, part: int | None) -> httpx.Response | str:
        headers = {"cache-control": "no-cache"} if self._given.fresh else {}
        if part is not None:
            headers["x-nearhit-max-cost-usd"] = usd(part)
        cost = 0
        try:
            answer = await _send(
                data, "/v1/chat/completions", {"model": item.model, "messages": item.messages}, headers
            )
            cost = 0 if isinstance(answer, str) else _cost(answer)
            return answer
        finally:
            self._purse.give_back(part, cost)

    def _answered(self, answer: httpx.Response | str) -> str | None:
        if isinstance(answer, str):
            return answer
        if answer.status_code < 400:
            kept = answer.headers.get("x-nearhit-cache", "").startswith("hit")
            self._tally.kept_before += kept
            self._tally.asked += not kept
            return None
        why = _problem(answer)
        if _code(answer) == "insufficient_quota":
            self._tally.stopped = why
        return why

    def _progress(self, total: int) -> None:
        if sys.stderr.isatty() and (self._seen % 10 == 0 or self._seen == total):
            end = "\n" if self._seen == total else ""
            print(f"\r{self._seen} of {total}, {dollars(self._purse.spent)}", end=end, file=sys.stderr, flush=True)


async def _send(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
) -> httpx.Response | str:
    """The answer; waits as told where the gateway is busy. In words, when there was none."""
    content = msgspec.json.encode(body)
    asked = {"content-type": "application/json", **headers}
    for left in reversed(range(_TRIES)):
        try:
            answer = await client.post(path, content=content, headers=asked)
        except httpx.HTTPError as error:
            return f"no answer: {error!r}"
        busy = answer.status_code in (429, 503) and answer.headers.get("x-should-retry") != "false"
        if not busy or left == 0:
            return answer
        await asyncio.sleep(_wait(answer.headers.get("retry-after", "1")))
    return "no answer"


def _wait(text: str) -> float:
    return min(_LONGEST_WAIT, float(text)) if text.isdigit() else 1.0


def _cost(answer: httpx.Response) -> int:
    try:
        return nano(answer.headers.get("x-nearhit-cost-usd", "0"))
    except ValueError:
        return 0


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        return _decode(answer.content)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}


def _problem(answer: httpx.Response) -> str:
    return str(_error(answer).get("message") or f"answered {answer.status_code}")


def _code(answer: httpx.Response) -> str:
    return str(_error(answer).get("code") or "")


def _print(tally: Tally, *, json: bool) -> None:
    if json:
        show.json(tally)
        return
    for bad in tally.bad[:_SHOWN]:
        show.line(f"line {bad.number}: {bad.why}")
    if len(tally.bad) > _SHOWN:
        show.line(f"and {len(tally.bad) - _SHOWN} more lines (--json names all)")
    before = f", {tally.done_before} done by an earlier run" if tally.done_before else ""
    show.line(
        f"{tally.planted} answers planted, {tally.asked} asked, {tally.kept_before} kept already{before}; "
        f"{len(tally.bad)} lines could not be used; spent {show.usd(tally.cost_usd)}"
    )
    if tally.stopped is not None:
        show.line(f"stopped: {tally.stopped}. Run it again to go on.")
