"""`python -m tests.compatibility --suites FOLDER --suites-home FOLDER [--only NAME …] [--write]`.

Runs other people's clients against nearhit, first in front of a scripted reference server that all of them pass, then
against the bundled engine alone; `--write` puts the results into docs/compatibility.md. LiteLLM's SDK does not declare
the `mcp` that its Responses import: its environment needs that package, or the test fails before anything is sent.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compatibility.page import written
from tests.compatibility.stage import ROOT, gateway, reference
from tests.compatibility.suites import NAMES, Place, Result, run_all

PAGE = ROOT / "docs" / "compatibility.md"


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description=__doc__)
    parser.add_argument("--suites", type=Path, required=True, help="the folder with the runners and refserver/")
    parser.add_argument("--suites-home", type=Path, required=True, help="the folder with their environments")
    parser.add_argument("--only", action="append", default=[], choices=NAMES, help="a suite, several times")
    parser.add_argument("--behind", choices=("reference", "engine"), action="append", default=[])
    parser.add_argument("--write", action="store_true", help="write docs/compatibility.md")
    return parser.parse_args()


def main() -> int:
    asked = _asked()
    place = Place(suites=asked.suites.resolve(), home=asked.suites_home.resolve())
    found: dict[str, list[Result]] = {}
    behind = asked.behind or ["reference", "engine"]
    with tempfile.TemporaryDirectory(prefix="nearhit-compatibility-") as folder:
        if "reference" in behind:
            with reference(place.suites, place.home) as upstream, gateway(Path(folder, "ref"), upstream) as stage:
                found["reference"] = run_all(place, stage, asked.only)
        if "engine" in behind:
            with gateway(Path(folder, "engine"), None) as stage:
                found["engine"] = run_all(place, stage, asked.only)
    text = written(found)
    if asked.write:
        PAGE.write_text(text, "utf-8")
    sys.stdout.write(text)
    return int(any(result.failures for result in found.get("reference", [])))


if __name__ == "__main__":
    sys.exit(main())
