"""`exports:` in nearhit.yaml: files that are written by themselves.

Knows: names and checks of these settings. Does not know: what is in the files (`gateway.exports`).
"""

from typing import Literal

from pydantic import Field, model_validator

from gateway.setting_types import Place, Section


class ExportSettings(Section):
    """A file that is written by itself into `folder`, for each day or month that is over."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    what: Literal["focus", "entries", "statement"] = "focus"
    format: Literal["csv", "parquet", "jsonl"] = "csv"
    every: Literal["day", "month"] = "day"
    folder: Place
    focus_version: Literal["1.2", "1.3"] = "1.2"

    @model_validator(mode="after")
    def _of_that_kind(self) -> "ExportSettings":
        forms = {"focus": ("csv", "parquet"), "entries": ("csv", "jsonl", "parquet"), "statement": ("csv",)}
        if self.format not in forms[self.what]:
            raise ValueError(f"`{self.what}` is written as {' or '.join(forms[self.what])}")
        return self
