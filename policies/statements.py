"""Statements of a month: what each team spent, its part of shared costs, what was corrected, what reuse saved.

Knows: how a cost is split so that the parts add up to it exactly. Does not know: databases, formats, months.
Amounts are whole nano-USD.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Split = Literal["even", "spend", "requests", "fixed"]


class TeamFacts(Struct, frozen=True):
    """What a team did in a month; amounts in nano-USD. `discount_nano`: taken off by providers' own prompt caches.

    `embed_nano`: what finding kept answers took of the encoder.
    """

    team: str
    requests: int = 0
    hits: int = 0
    saved_nano: int = 0
    corrected_nano: int = 0
    audit_nano: int = 0
    discount_nano: int = 0
    embed_nano: int = 0

    @property
    def net_saved_nano(self) -> int:
        """What is left once wrong hits are taken back and the checking and the encoder are paid."""
        return self.saved_nano + self.corrected_nano - self.audit_nano - self.embed_nano


class Shared(Struct, frozen=True, kw_only=True):
    """A cost that teams share: a fixed amount, or what the team `team` spent. `shares`: weights of `fixed`."""

    name: str
    amount_nano: int | None
    team: str | None
    split: Split
    shares: dict[str, int] = {}


class Facts(Struct, frozen=True, kw_only=True):
    """What a statement needs beside the lines of its month. `by`: how fine those are.

    `nobody`: those of no team pay a part of what is shared; `named`: so do teams that did nothing and are only named by
    some shared cost. Both as in months that were closed before 2026-11-26. `pruned`: usage of the month was not kept
    any more, so `teams` have nothing but the attempts that the ledger has of them. `hits`: the digest of the hits that
    were sealed with the month; None where none were kept.
    """

    by: Literal["user", "key", "model"] = "user"
    nobody: bool = True
    named: bool = True
    pruned: bool = False
    hits: str | None = None
    teams: list[TeamFacts] = []
    shared: list[Shared] = []


class Part(Struct, frozen=True, kw_only=True):
    """A team's part of a shared cost; its `weight` among `weights` in all."""

    name: str
    split: Split
    weight: int
    weights: int
    amount_nano: int


class TeamBill(Struct, kw_only=True):
    """What one team owes for a month. `own_nano` is its own spend; a team whose spend is shared owes it no more."""

    team: str
    own_nano: int = 0
    adjustments_nano: int = 0
    parts: list[Part] = []
    facts: TeamFacts = TeamFacts("")

    @property
    def shared_nano(self) -> int:
        return sum(part.amount_nano for part in self.parts)

    @property
    def total_nano(self) -> int:
        return self.own_nano + self.shared_nano + self.adjustments_nano


def shares(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """`amount` in proportion to the weights, in whole units that add up to it exactly (largest remainder).

    Among equal remainders the earlier name gets the unit. Without any weight everybody has the same. A negative amount
    is split as its opposite. Raises ValueError for a negative weight or nobody to split among.
    """
    if not weights or min(weights.values()) < 0:
        raise ValueError("a cost is split among at least one team, by weights that are not negative")
    if amount < 0:
        return {name: -part for name, part in shares(-amount, weights).items()}
    even = not any(weights.values())
    given = dict.fromkeys(weights, 1) if even else weights
    whole = sum(given.values())
    parts = {name: amount * weight // whole for name, weight in given.items()}
    left = amount - sum(parts.values())
    by_remainder = sorted(given, key=lambda name: (-(amount * given[name] % whole), name))
    for name in by_remainder[:left]:
        parts[name] += 1
    return parts


def bills(spent: Mapping[str, int], adjusted: Mapping[str, int], facts: Facts) -> list[TeamBill]:
    """A bill per team, in order of name: `spent` and `adjusted` nano-USD per team, shared costs split.

    Shared costs are split among the teams that did anything; where none did, among those that are named, and where
    there are none, those of no team bear them.
    What a shared team spent is split among the others; its own bill then carries the same amount taken off, so that
    all bills together are the ledger's sum and the fixed shared costs, to the nano-USD.
    """
    known = {team.team: team for team in facts.teams}
    named = [name for shared in facts.shared for name in (*shared.shares, shared.team) if name]
    teams = sorted({*spent, *adjusted, *known, *named})
    found = {
        name: TeamBill(
            team=name,
            own_nano=spent.get(name, 0),
            adjustments_nano=adjusted.get(name, 0),
            facts=known.get(name, TeamFacts(name)),
        )
        for name in teams
    }
    active = found if facts.named else {*spent, *adjusted, *known}
    takers = [name for name in found if name in active and (name or facts.nobody)]
    takers = takers or [name for name in found if name] or list(found)
    for shared in facts.shared:
        _share(shared, [name for name in takers if name != shared.team], found, spent)
    return list(found.values())


def _share(shared: Shared, takers: Sequence[str], found: Mapping[str, TeamBill], spent: Mapping[str, int]) -> None:
    amount = shared.amount_nano if shared.team is None else spent.get(shared.team, 0)
    if not amount or not takers:
        return
    weights = _weights(shared, takers, found, spent)
    if not weights:
        return
    whole = sum(weights.values())
    for name, part in shares(amount, weights).items():
        given = Part(name=shared.name, split=shared.split, weight=weights[name], weights=whole, amount_nano=part)
        found[name].parts = [*found[name].parts, given]
    if shared.team is not None:
        taken = Part(name=shared.name, split=shared.split, weight=0, weights=whole, amount_nano=-amount)
        found[shared.team].parts = [*found[shared.team].parts, taken]


def _weights(
    shared: Shared, takers: Sequence[str], found: Mapping[str, TeamBill], spent: Mapping[str, int]
) -> dict[str, int]:
    if shared.split == "fixed":
        return {name: weight for name, weight in shared.shares.items() if name != shared.team}
    if shared.split == "spend":
        return {name: max(0, spent.get(name, 0)) for name in takers}
    if shared.split == "requests":
        return {name: found[name].facts.requests for name in takers}
    return dict.fromkeys(takers, 1)


def total(parts: Iterable[TeamBill]) -> int:
    return sum(bill.total_nano for bill in parts)
