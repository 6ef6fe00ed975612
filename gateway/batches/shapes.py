"""What a batch is, as it is kept and as clients see it.

Knows: states, OpenAI's batch object. Does not know: SQL, how anything is run.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.call import Given, Principal
from gateway.wire_shapes import Metadata

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
State = Literal["waiting", "away", "running", "done", "failed", "expired", "cancelled"]
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
WINDOW_SECONDS = 86_400.0
Json = dict[str, object]


class Lifetime(Struct, gc=False):
    """How long output files are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3_600, le=2_592_000)]


class Wanted(Struct, gc=False, kw_only=True):
    """POST /v1/batches."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Annotated[str, Meta(max_length=128)]
    completion_window: Literal["24h"]
    metadata: Metadata = None
    output_expires_after: Lifetime | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """Lines of a batch; `completed` and `failed` have ended."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """One batch. Instants in seconds since the epoch; None: has not happened."""

    id: str
    team: str
    project: str
    key_id: str
    endpoint: str
    input_file: str
    output_file: str | None
    error_file: str | None
    window: str
    status: Status
    metadata: dict[str, str] | None
    errors: list[Json] | None
    directives: Json
    lines: int
    succeeded: int
    unsuccessful: int
    output_lifetime: float
    created: float
    expires: float
    in_progress: float | None
    finalizing: float | None
    completed: float | None
    failed: float | None
    expired: float | None
    cancelling: float | None
    cancelled: float | None

    @property
    def owner(self) -> Principal:
        """Whose it is, whatever has become of the key."""
        return Principal(key_id=self.key_id, team=self.team, project=self.project)

    def shown(self, counts: Counts) -> Json:
        """OpenAI's batch object."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": None if not self.errors else {"object": "list", "data": self.errors},
            "input_file_id": self.input_file,
            "completion_window": self.window,
            "status": self.status,
            "output_file_id": self.output_file,
            "error_file_id": self.error_file,
            "created_at": int(self.created),
            "in_progress_at": _whole(self.in_progress),
            "expires_at": int(self.expires),
            "finalizing_at": _whole(self.finalizing),
            "completed_at": _whole(self.completed),
            "failed_at": _whole(self.failed),
            "expired_at": _whole(self.expired),
            "cancelling_at": _whole(self.cancelling),
            "cancelled_at": _whole(self.cancelled),
            "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
            "metadata": self.metadata,
        }


class Line(Struct, frozen=True, kw_only=True):
    """One request that is to be made. `request`: its body as JSON. `given`: its answer, where that is here already."""

    number: int
    custom_id: str
    request: bytes
    request_id: str
    given: Given | None = None


class Result(Struct, frozen=True, kw_only=True):
    """What became of a line; `told`: its line of the output or of the error file."""

    number: int
    state: State
    told: bytes


def _whole(instant: float | None) -> int | None:
    return None if instant is None else int(instant)
