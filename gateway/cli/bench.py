"""`nearhit bench …`: measurements. The last line of each is one JSON object."""

from pathlib import Path


def gateway_bench(*, peer: list[str] | None = None, seconds: float = 3.0, save: Path | None = None) -> int:
    """CPU per request, added latency, requests per second and memory: miss, exact hit, semantic hit, stream.

    Parameters
    ----------
    peer
        Base URL of another gateway to measure in the same run; may be given several times.
    seconds
        Length of each measurement.
    save
        Folder to keep the result in.
    """
    from gateway.bench.gateway import run

    return run(peer or [], seconds=seconds, save=save)
