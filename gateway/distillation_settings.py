"""Whose prompts and answers may be kept to train a smaller model on.

Knows: names and bounds. Does not know: what is kept, where.
"""

from gateway.setting_types import Octets, Section


class DistillationSettings(Section):
    """`projects`: those that consented, as `<team>/<name>`; none unless said.

    `max_size`: of one project's file; then nothing more is kept.
    """

    projects: list[str] = []
    max_size: Octets = 1 << 30
