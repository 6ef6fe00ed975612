"""`nearhit bench …`: measurements. The last line of each is one JSON object."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@dataclass
class CacheRun:
    """What may be given beside the file.

    Parameters
    ----------
    budget
        Allowed share of wrong answers among all requests.
    seed
        Draws the order of the stream and every coin.
    limit
        Read no more than so many rows (of a stream, after shuffling).
    policy
        learned, verified, guarded, threshold, cold (learned without the shipped prior), cosine-80, cosine-90,
        cosine-95 or gptcache-default.
    flip
        How often the judge of a stream is wrong.
    artefact
        Prior to use instead of the shipped one: from python -m cache.training --leave-one-out.
    cache
        Folder that keeps embeddings between runs.
    json
        Only the line of JSON.
    """

    budget: float = 0.01
    seed: int = 0
    limit: int | None = None
    policy: str = "learned"
    flip: float = 0.0
    artefact: Path | None = None
    cache: Path | None = None
    json: bool = False


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


@dataclass
class EngineRun:
    """What may be given to choose a part.

    Parameters
    ----------
    model
        5m or 100m; may be given several times.
    peers
        nearhit, llama_cpp, transformers_generate, transformers_static, transformers_continuous.
    workloads
        one, sixteen, prefix, long.
    threads
        Threads of torch or ggml.
    weights
        float32, bfloat16, int8, int4: the latter three by ours and llama.cpp, with what they cost in perplexity.
    repeats
        Each asks other prompts.
    long_prompt
        Tokens of the prompt that comes into running answers.
    """

    model: tuple[str, ...] = ("5m", "100m")
    peers: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1, 2)
    weights: tuple[str, ...] = ("float32", "bfloat16", "int8", "int4")
    repeats: int = 3
    long_prompt: int = 8192


def engine_bench(
    *,
    setting: Annotated[EngineRun | None, Parameter(name="*")] = None,
    save: Path | None = None,
    folder: Path = Path(".venv/bench-engine"),
) -> int:
    """The engine beside transformers and llama.cpp: tokens per second, TTFT, TPOT, gaps. Needs the extra `bench`.

    Parameters
    ----------
    save
        Folder to keep the result in.
    folder
        Where the seeded checkpoints are kept between runs.
    """
    from engine.bench import compare
    from gateway.cli import show
    from gateway.cli.wrong import Wrong

    given = setting or EngineRun()
    usual = compare.Plan(folder=folder)
    plan = compare.Plan(
        folder=folder,
        models=given.model,
        names=given.workloads or usual.names,
        peers=given.peers or usual.peers,
        threads=given.threads,
        weights=given.weights,
        repeats=given.repeats,
        long_prompt=given.long_prompt,
    )
    show.line(compare.HEAD)
    try:
        found = compare.run(plan, show.line)
    except LookupError as error:
        raise Wrong(str(error)) from error
    if save is not None:
        show.line(f"kept in {compare.save(found, save)}")
    show.json_line(found)
    return 0


def cache_bench(
    *,
    stream: Path | None = None,
    pairs: Path | None = None,
    arm: str | None = None,
    max_wrong_hit_rate: str = "0.05",
    baselines: bool = False,
    setting: Annotated[CacheRun | None, Parameter(name="*")] = None,
) -> int:
    """How often the cache hits and how often that is wrong, over labelled requests or pairs.

    Parameters
    ----------
    stream
        Requests (columns text, class_id, tag; TSV, maybe gzipped), asked one after another from an empty cache.
    pairs
        Pairs of texts (columns a, b, label, tag): would the second be served the answer of the first?
    arm
        A property to show, on the stream or on texts of our own: zero, drift, stale, poison, liars, tenants, delete,
        crash, or all.
    max_wrong_hit_rate
        Allowed share of wrong answers among hits, or off.
    baselines
        Also run the fixed thresholds, the best of them in hindsight, the published verified cache, and the prototype.
    """
    from cache.bench.run import Setting
    from gateway.bench.cache import Wanted, run
    from gateway.cli.wrong import Wrong
    from policies.reuse import Budget

    if (arm is None and (stream is None) == (pairs is None)) or (arm is not None and pairs is not None):
        raise Wrong("give either --stream FILE or --pairs FILE, or --arm NAME with or without --stream FILE")
    given = setting or CacheRun()
    per_hit = 1.0 if max_wrong_hit_rate == "off" else _share(max_wrong_hit_rate)
    chosen = Setting(
        budget=Budget(max_error_rate=given.budget, max_wrong_hit_rate=per_hit),
        folder=given.cache or Path(),
        policy=given.policy,
        seed=given.seed,
        limit=given.limit,
        flip=given.flip,
        artefact=given.artefact,
    )
    wanted = Wanted(stream=stream, pairs=pairs, arm=arm, baselines=baselines, quiet=given.json)
    return run(wanted, chosen)


def _share(given: str) -> float:
    from gateway.cli.wrong import Wrong

    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise Wrong(f"--max-wrong-hit-rate {given}: a share from 0 to 1, or off")
    return value
