"""Every table, typed.

Knows: columns, keys, checks. Does not know: who writes them, dialects beyond what SQLAlchemy hides, migrations.

Amounts are BIGINT nano-USD (10^-9), prices BIGINT pico-USD per token, instants seconds since the epoch (UTC) as
doubles, window bounds whole seconds. Ids are text made before the row is written, so that a retried write is a no-op.
"""

from gateway.db.models.base import Base
from gateway.db.models.happened import Explain, RequestRow, SavingCorrection
from gateway.db.models.kept import (
    BatchLine,
    BatchPart,
    BatchRow,
    KeptResponse,
    OnceAnswer,
    ResponseStream,
    StoredFile,
    StoredPiece,
)
from gateway.db.models.limits import Boot, BudgetAlert, BudgetRow, BudgetVersion, BudgetWindow, Lease
from gateway.db.models.months import ExportRun, LateEntry, MonthHit, MonthLine, MonthSeal, SharedCost
from gateway.db.models.pace import AlertDelivery, CacheAlert, CacheDelivery, RateBucket, RateRow, SpendingDelivery
from gateway.db.models.spent import Entry, EntryConflict, PriceOverride, PriceVersion
from gateway.db.models.sums import UsageDay, UsageDays8, UsageDays64, UsageHour, UsageWho
from gateway.db.models.who import ApiKey, Audit, LoginSession, Project, Setting, Team

__all__ = [
    "AlertDelivery",
    "ApiKey",
    "Audit",
    "Base",
    "BatchLine",
    "BatchPart",
    "BatchRow",
    "Boot",
    "BudgetAlert",
    "BudgetRow",
    "BudgetVersion",
    "BudgetWindow",
    "CacheAlert",
    "CacheDelivery",
    "Entry",
    "EntryConflict",
    "Explain",
    "ExportRun",
    "KeptResponse",
    "LateEntry",
    "Lease",
    "LoginSession",
    "MonthHit",
    "MonthLine",
    "MonthSeal",
    "OnceAnswer",
    "PriceOverride",
    "PriceVersion",
    "Project",
    "RateBucket",
    "RateRow",
    "RequestRow",
    "ResponseStream",
    "SavingCorrection",
    "Setting",
    "SharedCost",
    "SpendingDelivery",
    "StoredFile",
    "StoredPiece",
    "Team",
    "UsageDay",
    "UsageDays8",
    "UsageDays64",
    "UsageHour",
    "UsageWho",
]
