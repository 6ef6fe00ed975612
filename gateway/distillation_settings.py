"""Whose prompts and answers may be kept to train a smaller model on.

Knows: names and bounds. Does not know: what is kept, where.
"""

from pydantic import field_validator

from gateway.setting_types import Octets, Section


class DistillationSettings(Section):
    """`projects`: those that consented, as `<team>/<name>`; none unless said.

    `max_size`: of one project's file; then nothing more is kept.
    """

    projects: list[str] = []
    max_size: Octets = 1 << 30

    @field_validator("projects")
    @classmethod
    def _whole_names(cls, value: list[str]) -> list[str]:
        for name in value:
            team, _, project = name.partition("/")
            if not team or not project:
                raise ValueError(f"{name[:80]!r} is no project; write team/project, as nothing of it would be kept")
        return value
