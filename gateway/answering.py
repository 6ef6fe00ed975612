"""Everything between a call and its begun answer, put together: deployments, routing, attempts, several answers.

Knows the constructors of those parts. Does not know what any of them does.
"""

import random
import time

from gateway.attempts import Attempts
from gateway.deployments import Deployments
from gateway.dispatch import Dispatcher, Means
from gateway.ledger import Ledger
from gateway.prices import PriceBook
from gateway.routing import Router
from gateway.several import Several
from gateway.tasks import Tasks
from gateway.upstreams import Upstreams


def answering(
    upstreams: Upstreams, deployments: Deployments, prices: PriceBook, ledger: Ledger, tasks: Tasks
) -> Several:
    """`tasks`: those a stop waits for."""
    attempts = Attempts(upstreams, deployments, prices, ledger, monotonic=time.monotonic)
    router = Router(upstreams, deployments, attempts.charging.price, monotonic=time.monotonic, random=random.random)
    means = Means(attempts=attempts, router=router, deployments=deployments, ledger=ledger, tasks=tasks)
    return Several(Dispatcher(means, monotonic=time.monotonic, random=random.random), tasks)
