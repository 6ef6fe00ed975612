"""What lately ended requests consumed, kept for callers that closed their stream before the end. Bounded."""

from collections import OrderedDict

from engine.api import EngineUsage

_KEPT = 4096


class RecentUsage:
    """Request id -> usage, for the `_KEPT` requests that ended last."""

    def __init__(self) -> None:
        self._usage: OrderedDict[str, EngineUsage] = OrderedDict()

    def put(self, request_id: str, usage: EngineUsage) -> None:
        self._usage[request_id] = usage
        self._usage.move_to_end(request_id)
        if len(self._usage) > _KEPT:
            self._usage.popitem(last=False)

    def get(self, request_id: str) -> EngineUsage | None:
        return self._usage.get(request_id)
