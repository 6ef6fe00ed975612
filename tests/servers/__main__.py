"""`python -m tests.servers KIND URL [URL …] [--model NAME] [--only NAME …]`: real servers behind the gateway.

Puts a gateway in front of servers of one kind that are already running (their addresses with `/v1`) and asks it with
OpenAI's and Anthropic's own clients what applications ask. Prints a table; exits 1 where anything differs.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

from tests.servers import answers, fleets
from tests.servers.place import Check, NotThere, Place, Unlike, first_model, placed

CHECKS: dict[str, Check] = {**answers.CHECKS, **fleets.CHECKS}


async def _checked(name: str, check: Check, place: Place) -> tuple[str, str]:
    """`yes`, `no` or `has none`, and what there is to say."""
    try:
        async with asyncio.timeout(180):
            return "yes", await check(place)
    except NotThere as none:
        return "has none", str(none)
    except Unlike as unlike:
        return "no", str(unlike)
    except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
        return "no", f"{type(error).__name__}: {error}"[:300]


def _provider(asked: argparse.Namespace) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": asked.kind, "plain_http": True, "billing": asked.billing}
    if asked.kind == "prefill_decode":
        return {**kind, "protocol": "vllm", "prefill": asked.urls[:1], "decode": asked.urls[1:]}
    return {**kind, "base_url": asked.urls[0]} if len(asked.urls) == 1 else {**kind, "replicas": asked.urls}


async def _run(asked: argparse.Namespace) -> bool:
    model = asked.model or await first_model(asked.urls[-1])
    well = True
    async with placed(asked.kind, _provider(asked), asked.urls, model) as place:
        for name, check in CHECKS.items():
            if asked.only and not any(part in name for part in asked.only):
                continue
            began = time.monotonic()
            verdict, said = await _checked(name, check, place)
            well = well and verdict != "no"
            sys.stdout.write(f"| {name} | {verdict} | {said} | {time.monotonic() - began:.1f} s |\n")
            sys.stdout.flush()
    return well


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument(
        "kind", help="vllm, sglang, dynamo, ray, llamacpp, openai …; prefill_decode: reader, then writer"
    )
    parser.add_argument("urls", nargs="+", help="with /v1")
    parser.add_argument("--model", help="as the servers call it; else the first they list")
    parser.add_argument("--billing", default="stops-on-close", help="what a stream closed early costs")
    parser.add_argument("--only", action="append", default=[], help="a part of a check's name, several times")
    return 0 if asyncio.run(_run(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
