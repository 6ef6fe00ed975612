"""Pure decisions: facts in, verdict out. No I/O, clock, randomness or asyncio lives below this package."""
