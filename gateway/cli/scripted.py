"""`nearhit scripted`: the deterministic upstream as a process of its own."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number


def scripted(  # noqa: PLR0913 - one name per flag
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65_535))] = 9100,
    host: str = "127.0.0.1",
    bill: Path | None = None,
    ttft_ms: float = 0.0,
    tpot_ms: float = 0.0,
    fail_rate: float = 0.0,
    cut_rate: float = 0.0,
    stop_on_close: Annotated[bool, Parameter(negative="--bill-anyway")] = False,
    seed: int = 0,
    tokens: int | None = None,
    say: str | None = None,
    finish: str | None = None,
    logprob: float | None = None,
    role: Literal["", "prefill", "decode"] = "",
    batch_ms: float = 0.0,
) -> None:
    """Run an upstream with scripted latency, failures and a bill of its own, for tests and benchmarks.

    Parameters
    ----------
    port
        Port to listen on; 0 lets the system choose.
    host
        Address to listen on.
    bill
        File that gets one JSON line per call: what a provider would charge.
    ttft_ms
        Milliseconds before the first token.
    tpot_ms
        Milliseconds before each further token.
    fail_rate
        Share of calls answered with an error.
    cut_rate
        Share of calls cut in the middle.
    stop_on_close
        Stop billing when the client leaves; --bill-anyway (the default) bills the whole answer.
    seed
        Chooses which calls fail.
    tokens
        Length of every answer; left out, it depends on the prompt.
    say
        The words of every answer.
    finish
        How every answer ends: stop, length, content_filter.
    logprob
        Log probability of every token, told where it is asked for.
    role
        Of a pair of servers that answer together: prefill or decode.
    batch_ms
        Milliseconds that a batch takes (/v1/batches, /v1/messages/batches, /together/v1, /xai/v1, /fireworks/v1).
    """
    from gateway.scripted_server import Options, run

    options = Options(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        fail_rate=fail_rate,
        cut_rate=cut_rate,
        stop_on_close=stop_on_close,
        seed=seed,
        tokens=tokens,
        say=say,
        finish=finish,
        logprob=logprob,
        role=role,
        batch_ms=batch_ms,
    )
    run(host, port, bill, options, announce=_announce)


def _announce(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
