"""`python -m tests.wire FOLDER [--verbose]`: other people's recordings of real services through our providers.

Reads every VCR cassette under FOLDER, feeds each chat answer and each refusal to the provider whose service gave it, in
pieces that cut events anywhere, and compares what the provider tells with what stands in the recording: words,
thinking, calls of tools, counts, the end; of a refusal its status and words. Prints a table; exits 1 where anything
differs.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

from tests.wire.cassettes import Unreadable, recordings
from tests.wire.replay import Outcome, owner, replayed

_FORMS = ("whole", "streamed", "error")


class Tally:
    """What was found, by kind. `others`: exchanges that are none of a provider's calls."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: dict[str, list[str]] = {}
        self.unreadable: list[str] = []
        self.others = 0

    def add(self, outcome: Outcome, where: Path) -> None:
        self.counts[outcome.kind, outcome.form] += 1
        if outcome.wrong:
            self.wrong.setdefault(outcome.kind, []).append(f"{where.name}: {'; '.join(outcome.wrong)}")

    def table(self) -> str:
        """As Markdown."""
        rows = ["| kind | whole answers | streamed | refusals | differ |", "|---|--:|--:|--:|--:|"]
        for kind in sorted({kind for kind, _ in self.counts}):
            told = " | ".join(str(self.counts[kind, form]) for form in _FORMS)
            rows.append(f"| `{kind}` | {told} | {len(self.wrong.get(kind, []))} |")
        return "\n".join(rows)


async def compared(folder: Path) -> Tally:
    """Everything under `folder`."""
    tally = Tally()
    for recorded in recordings(folder):
        if isinstance(recorded, Unreadable):
            tally.unreadable.append(f"{recorded.file.name}: {recorded.why}")
        elif (kind := owner(recorded)) is None:
            tally.others += 1
        else:
            try:
                tally.add(await replayed(kind, recorded), recorded.file)
            except ValueError as error:
                tally.unreadable.append(f"{recorded.file.name}: {str(error)[:100]}")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true", help="name every difference")
    asked = parser.parse_args()
    tally = asyncio.run(compared(asked.folder))
    sys.stdout.write(f"{tally.table()}\n\n")
    sys.stdout.write(f"{tally.others} other exchanges, {len(tally.unreadable)} that could not be read\n")
    if asked.verbose:
        for name, lines in (*tally.wrong.items(), ("unreadable", tally.unreadable)):
            sys.stdout.writelines(f"{name}: {line}\n" for line in lines)
    return int(bool(tally.wrong) or not tally.counts)


if __name__ == "__main__":
    sys.exit(main())
