"""`nearhit` whose `serve` starts no encoder, for tests of anything else: `python -m tests.e2e.without_encoder serve`.

Knows: the supervisor's list of processes. Does not know: what they do.
"""

import sys
from typing import Any

from gateway import serve
from gateway.cli import main
from gateway.serve_child import Plan

_all_plans = serve.plans_for


def plans_for(started: serve.Started, chosen: dict[str, Any]) -> list[Plan]:
    return [plan for plan in _all_plans(started, chosen) if plan.kind != "encoder"]


if __name__ == "__main__":
    serve.plans_for = plans_for
    sys.exit(main())
