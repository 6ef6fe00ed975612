"""What a proof measured, kept: `make proof` writes one dated JSON file per proof under docs/proofs.

Knows: where results are kept, and on what they were measured. Does not know: any proof.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "proofs"
_WANTED = os.environ.get("NEARHIT_PROOF")  # noqa: TID251 - read before the tests wipe every setting from the environment


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
