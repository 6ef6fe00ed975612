"""Money: budgets held before anything is sent, a journal that survives a crash, entries that never change."""

from gateway.ledger.holds import Hold
from gateway.ledger.ledger import Ledger
from gateway.ledger.plan import AttemptPlan, Ended, Posting, Settlement, Source, doubtful, given_up
from gateway.ledger.reconcile import Reconciliation

__all__ = [
    "AttemptPlan",
    "Ended",
    "Hold",
    "Ledger",
    "Posting",
    "Reconciliation",
    "Settlement",
    "Source",
    "doubtful",
    "given_up",
]
