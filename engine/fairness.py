"""Whose turn it is: service is shared evenly between tenants, whatever each of them asks for.

Knows: tenants as opaque salts, tokens served. Does not know: sequences, blocks, clocks.

A virtual token counter per tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): who was
served least goes first. A tenant that comes back after a pause does not bring the pause along as a credit.
"""

from collections import Counter, OrderedDict

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # a generated token costs a row of its own step
_REMEMBERED = 4096


class Fairness:
    """`join` and `leave` bracket every request; `charge` counts what it got."""

    def __init__(self) -> None:
        self._served: OrderedDict[str, float] = OrderedDict()
        self._active: Counter[str] = Counter()

    def join(self, tenant: str) -> None:
        if not self._active[tenant]:
            others = [self._served[one] for one in self._active if self._active[one]]
            floor = min(others, default=0.0)
            self._served[tenant] = max(self._served.get(tenant, 0.0), floor)
            self._served.move_to_end(tenant)
        self._active[tenant] += 1
        self._forget_idle()

    def leave(self, tenant: str) -> None:
        self._active[tenant] -= 1
        if self._active[tenant] <= 0:
            del self._active[tenant]

    def charge(self, tenant: str, prompt: int, output: int) -> None:
        self._served[tenant] = self.served(tenant) + PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output

    def served(self, tenant: str) -> float:
        """Weighted tokens so far; smaller goes first."""
        return self._served.get(tenant, 0.0)

    def _forget_idle(self) -> None:
        """The longest idle tenants; one that is active is never forgotten."""
        if len(self._served) > _REMEMBERED:
            idle = next((one for one in self._served if not self._active[one]), None)
            if idle is not None:
                del self._served[idle]
