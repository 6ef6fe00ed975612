"""Counts of look-ups by tenant and model, bounded: whoever invents new model names ends up in one common row."""

from cache.types import Group, Hit, Miss, Query, ScopeStats

MAX_GROUPS = 2_000
OTHERS = Group("(others)", "(others)", "(others)")


class Tally:
    """Counts since the process started."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], ScopeStats] = {}

    def of(self, query: Query) -> ScopeStats:
        found = self._groups.get((query.team, query.project, query.model))
        return found or self._row(Group(query.team, query.project, query.model))

    def found(self, query: Query, found: Hit | Miss, again: Miss | None) -> None:
        """How a look-up has ended. One made once more for the same request, after the miss `again`, counts once."""
        row = self.of(query)
        if again is not None:
            self._take_back(row, again.reason)
        row.lookups += 1
        if isinstance(found, Miss):
            row.misses[found.reason] = row.misses.get(found.reason, 0) + 1
        elif found.tier == "exact":
            row.hits_exact += 1
        else:
            row.hits_semantic += 1

    def _take_back(self, row: ScopeStats, reason: str) -> None:
        if row.misses.get(reason, 0) > 0:
            row.lookups -= 1
            row.misses[reason] -= 1
            if not row.misses[reason]:
                del row.misses[reason]

    def rows(self, held: dict[Group, int] | None) -> list[ScopeStats]:
        """Every group that was asked for or holds entries; `held` None: the store cannot say."""
        for group in held or {}:
            self._row(group)
        rows: list[ScopeStats] = []
        for group, row in sorted(self._groups.items()):
            entries = None if held is None else held.get(Group(*group), 0)
            rows.append(
                ScopeStats(
                    team=row.team,
                    project=row.project,
                    model=row.model,
                    entries=entries,
                    lookups=row.lookups,
                    hits_exact=row.hits_exact,
                    hits_semantic=row.hits_semantic,
                    kept=row.kept,
                    misses=dict(row.misses),
                )
            )
        return rows

    def _row(self, group: Group) -> ScopeStats:
        row = self._groups.get(group)
        if row is None:
            if len(self._groups) >= MAX_GROUPS:
                group = OTHERS
            row = self._groups.setdefault(group, ScopeStats(team=group.team, project=group.project, model=group.model))
        return row
