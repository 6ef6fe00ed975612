"""What is kept here, how much of it and for how long: files, batches and responses of clients; rows and sums of usage.

Knows: names and ranges. Does not know: where anything is kept.
"""

from pydantic import Field, model_validator

from gateway.setting_types import Octets, Seconds, Section

_MONTH = 30 * 86_400.0


class KeptSettings(Section):
    """`project_*`: of one project in all; more is refused (files, batches) or pushes out the oldest (responses).

    `batch_in_flight`: requests of batches that one worker has under way at once. `retry_interrupted`: a request of a
    batch that was under way when its worker was killed is sent once more, though it may have been billed; otherwise it
    stands in the error file. `batch_look`: how often a provider's own batch is asked whether it is done.
    `batch_patience`: how long a cancelled or expired batch waits for a provider that says nothing of it any more; then
    its requests are told as interrupted and stay charged at the most they can cost.
    """

    max_file: Octets = 100 << 20
    project_files: Octets = 10 << 30
    output_ttl: Seconds = _MONTH
    batch_lines: int = Field(default=50_000, ge=1)
    project_batches: int = Field(default=100, ge=1)
    batch_in_flight: int = Field(default=8, ge=1, le=256)
    retry_interrupted: bool = False
    batch_look: Seconds = 30.0
    batch_patience: Seconds = 3_600.0
    responses_ttl: Seconds = _MONTH
    project_responses: Octets = 256 << 20


class RetentionSettings(Section):
    """Days that things are kept, 0 for ever: rows of requests, their sums by hour, their sums by day."""

    requests: int = Field(default=90, ge=0)
    hours: int = Field(default=400, ge=0)
    days: int = Field(default=2_600, ge=0)

    @model_validator(mode="after")
    def _sums_outlive_rows(self) -> "RetentionSettings":
        """A row whose sums are gone already could not be told any more."""
        in_order = [value or 10**9 for value in (self.requests, self.hours, self.days)]
        if in_order != sorted(in_order):
            raise ValueError("`requests` must not be kept longer than `hours`, nor those longer than `days`")
        return self
