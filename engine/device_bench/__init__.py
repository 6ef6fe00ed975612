"""Is the engine right on a GPU, and how near is it to the hardware's limit? Two commands, each under ten minutes.

Knows: workloads, references, peers, rooflines. Does not know: gateways. `docs/benchmarks.md` says how to run it;
nothing here is imported by the engine itself. Every stage runs in a process of its own under a time limit: one that
fails is reported and the others go on, and every row is on disk as soon as it was measured.
"""
