"""What keeps a gateway from taking requests: what loads for the first time, and nothing that is down."""

from pathlib import Path

from engine.api import Engine, EngineStats
from engine.client import EngineClient
from engine.pool import EnginePool
from engine.sim import SimEngine
from gateway.readiness import Readiness, Standing


class _Told(SimEngine):
    """A simulated engine that says of itself what it is told to say."""

    def __init__(self, stats: EngineStats) -> None:
        super().__init__()
        self.told = stats

    def stats(self) -> EngineStats:
        return self.told


LOADING = EngineStats(ready=False, loading="model is loading")
FAILED = EngineStats(ready=False, loading="config.json is missing", failed=True)
READY = EngineStats(ready=True)


def test_what_is_down_does_not_take_the_rest_along() -> None:
    """One engine with a wrong folder, or one that starts again for a minute, took the whole gateway out of its service,
    its hits and other models too; in Kubernetes it was started anew for ever.
    """
    good, bad = _Told(LOADING), _Told(LOADING)
    encoder: list[str | None] = ["reading weights"]
    engines: dict[str, Engine] = {"good": good, "bad": bad}
    readiness = Readiness(engines, lambda: encoder[0], lambda: True)
    everything = {"good": LOADING.loading, "bad": LOADING.loading, "encoder": "reading weights"}
    assert readiness.look() == Standing(everything, {})
    bad.told = FAILED
    encoder[0] = None
    assert readiness.look() == Standing({"good": LOADING.loading}, {"bad": FAILED.loading})
    good.told = READY
    assert readiness.look() == Standing({}, {"bad": FAILED.loading})
    good.told = LOADING
    encoder[0] = "went away"
    assert readiness.look() == Standing({}, {"good": LOADING.loading, "bad": FAILED.loading, "encoder": "went away"})
    bad.told = READY
    assert readiness.look().down.keys() == {"good", "encoder"}


def test_a_gateway_that_can_ask_nobody_any_more_takes_no_requests() -> None:
    """Its last engine starts again or never came: a balancer has better places, and a rollout of it must not go on."""
    first, second = _Told(READY), _Told(READY)
    upstreams = [False]
    readiness = Readiness({"first": first, "second": second}, lambda: "went away", lambda: upstreams[0])
    assert readiness.look().waiting == {"encoder": "went away"}
    first.told = FAILED
    assert "first" not in readiness.look().waiting
    second.told = LOADING
    assert readiness.look().waiting.keys() == {"first", "second", "encoder"}
    upstreams[0] = True
    assert readiness.look().waiting.keys() == {"encoder"}


def test_of_several_processes_one_that_may_still_come_is_waited_for() -> None:
    """Each says so for itself; as long as one loads, the engine may be ready in a moment."""
    replicas = [_Told(FAILED), _Told(LOADING)]
    pool = EnginePool(replicas)
    assert not pool.stats().failed
    replicas[1].told = FAILED
    assert pool.stats().failed


def test_a_process_that_nobody_has_heard_of_may_still_come(tmp_path: Path) -> None:
    """What was never there has not said that it cannot serve."""
    assert not EngineClient("demo", tmp_path / "none.sock").stats().failed
