"""How large a proof is, and what it measured: `make proof` writes one dated JSON file per proof under docs/proofs.

Knows: where results are kept, on what they were measured, whether the full size is wanted. Does not know: any proof.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "proofs"
_WANTED = os.environ.get("NEARHIT_PROOF")  # noqa: TID251 - read before the tests wipe every setting from the environment


def wanted() -> bool:
    """Whether this is `make proof`, where everything has its full size."""
    return bool(_WANTED)


def examples(full: int) -> int:
    """How many inputs Hypothesis draws: all of them under `make proof`, else three in ten, others in every run."""
    return full if wanted() else max(10, full * 3 // 10)


def keep(name: str, **figures: object) -> None:
    """Print the figures and, under `make proof`, write them to docs/proofs/<name>.json."""
    about = {
        "proof": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        **figures,
    }
    sys.stdout.write(json.dumps(about) + "\n")
    if _WANTED:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
