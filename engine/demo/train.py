"""Trains the demo model from nothing on two CPU cores: `python -m engine.demo.train [--out FOLDER] [--hold N]`.

Knows: the recipe (sizes, seed, schedule) and how to write an ordinary Qwen3 checkpoint folder.
Does not know: the data's content, or the test questions, which `card.py` alone reads.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, json
from tokenizers import Tokenizer
from torch import multiprocessing
from torch.nn.functional import cross_entropy, dropout, embedding

from engine.demo.batches import Batch, Encoder, batches
from engine.demo.corpus import Corpus, Material, load_material, part
from engine.demo.facts import FOLDER, REFUSAL
from engine.demo.lessons import Lessons, lessons
from engine.demo.questions import frame_questions, free_questions, refusal_questions
from engine.demo.scoring import verdicts
from engine.demo.teacher import english_words
from engine.demo.vocabulary import END, PAD, TEMPLATE, letter_sharing, token_id, train_tokenizer


def _transformers() -> Any:
    """It takes seconds, and who reads a recipe or the facts needs no model; a type checker reads it for a minute."""
    return import_module("transformers")


class Stage(Struct, frozen=True):
    """One run of warm-up, level rate and decay; each stage starts from the saved weights of the one before."""

    seed: int
    steps: int
    rate: float
    strange: float = 0.0  # the share of filled sentence patterns in which other words stand for some of the pattern's
    whole: float = 0.1  # the share of samples that carry their whole answer


class Recipe(Struct, frozen=True):
    """Every number the result depends on."""

    seed: int = 20261121
    stages: tuple[Stage, ...] = (
        Stage(20261121, 2800, 4e-3),
        Stage(20261122, 1300, 2e-3, strange=0.3, whole=0.2),
        Stage(20261123, 300, 1.5e-3, strange=0.5, whole=0.7),
    )
    vocabulary: int = 8192
    hidden: int = 128
    feed_forward: int = 384
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 2048
    buckets: int = 4096
    batch: int = 48
    warmup: int = 100
    decay: float = 0.1
    dropout: float = 0.15
    processes: int = 2
    forget: float = 0.25  # the share of words whose free embedding a step leaves out
    smoothing: float = 0.1
    kind_weight: float = 2.0
    vector_weight: float = 6.0
    further: int = 12_000  # questions made by the program and labelled by the teacher


class Network(torch.nn.Module):
    """The Qwen3 model plus what only training needs, merged into it or left behind by `merge`.

    Every embedding is a free one, plus one shared by letters, plus the teacher's word vector times a learned matrix, so
    that a word seen rarely starts where words of similar meaning are. Two heads below the top layer guess the answer's
    number and the teacher's vector of the question.
    """

    letters: torch.Tensor
    meanings: torch.Tensor
    meant: torch.Tensor
    vectors: torch.Tensor

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, start: Path | None, told: Lessons) -> None:
        super().__init__()
        self.model: Any = load(start)[0] if start else _transformers().Qwen3ForCausalLM(_config(recipe, tokenizer))
        self.model.set_attn_implementation("eager")  # short rows on one core: a quarter less CPU than sdpa
        self.shared = torch.nn.Parameter(torch.randn(recipe.buckets, recipe.hidden) * (0.0 if start else 0.02))
        self.register_buffer("letters", letter_sharing(tokenizer, recipe.buckets))
        self.meaning = torch.nn.Parameter(torch.randn(told.meanings.shape[1], recipe.hidden) * (0.0 if start else 0.02))
        self.register_buffer("meanings", told.meanings)
        self.register_buffer("meant", told.meanings.any(1, keepdim=True) & (start is None))
        self.register_buffer("vectors", told.vectors)
        self.seen = torch.nn.RMSNorm(recipe.hidden)
        self.kind = torch.nn.Linear(recipe.hidden, told.kinds)
        self.guess = torch.nn.Linear(recipe.hidden, told.vectors.shape[1])
        self._recipe = recipe

    def embeddings(self) -> torch.Tensor:
        """(tokens, hidden): the free embedding of each token plus the share of its letters and of its meaning."""
        return self.model.model.embed_tokens.weight + self._common()

    def _common(self) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sparse.mm(self.letters, self.shared) + self.meanings @ self.meaning

    def loss(self, batch: Batch) -> torch.Tensor:
        """The weighted mean cross entropy of the answers' tokens, plus what the two heads get wrong."""
        common, own = self._common(), self.model.model.embed_tokens.weight
        table = common + own
        kept = own * (~self.meant | (torch.rand(own.shape[0], 1) >= self._recipe.forget))
        inputs = dropout(embedding(batch.tokens[:, :-1], common + kept), self._recipe.dropout, self.training)
        out = self.model.model(inputs_embeds=inputs, use_cache=False, output_hidden_states=True)
        hidden = out.last_hidden_state
        weights = batch.weights[:, 1:]
        chosen = weights > 0
        logits = (hidden[chosen] @ table.T).float()
        each = cross_entropy(logits, batch.tokens[:, 1:][chosen], reduction="none")
        written = (each * weights[chosen]).sum() / batch.tokens.shape[0]
        return written + self._understood(out.hidden_states[-2], batch)

    def _understood(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """How wrong the heads are at the question's last place, one layer below the top.

        There, and not at the top, so that the answer's later tokens can still attend to what was recognised. Samples
        without an answer or a vector take no part in it.
        """
        recipe = self._recipe
        read = self.seen(hidden[torch.arange(len(batch.ends)), batch.ends].float())
        with torch.autocast("cpu", enabled=False):
            kinds, guess = self.kind(read), self.guess(read)
        told = batch.rows >= 0
        far = 1 - torch.nn.functional.cosine_similarity(guess[told], self.vectors[batch.rows[told]])
        sure = cross_entropy(kinds, batch.labels, label_smoothing=recipe.smoothing)
        return recipe.kind_weight * sure + recipe.vector_weight * far.sum() / len(batch.ends)

    @torch.no_grad()
    def merge(self) -> Any:
        """The plain model: its embedding now holds the sum, and nothing else is needed to run it."""
        self.model.model.embed_tokens.weight.copy_(self.embeddings())
        self.shared.zero_()
        self.meaning.zero_()
        return self.model


def train(
    recipe: Recipe, material: Material, stage: Stage, start: Path | None = None, told: Lessons | None = None
) -> tuple[Any, Tokenizer, Lessons]:
    """The trained model (float32, in eval mode), its tokenizer, and what the teacher told, for the next stage.

    The same for the same recipe, data and machine.

    `recipe.processes` equal workers each take their own samples and share one mean gradient per step.
    """
    torch.set_num_threads(1)
    tokenizer = load(start)[1] if start else train_tokenizer(_texts(material, recipe.seed), recipe.vocabulary)
    torch.set_num_threads(recipe.processes)
    told = told or lessons(material, tokenizer, recipe.seed, recipe.further)
    torch.set_num_threads(1)
    network = _network(recipe, tokenizer, start, told)
    size = sum(p.numel() for p in network.parameters())
    _say(f"{sum(p.numel() for p in network.model.parameters()):,} parameters")
    context = multiprocessing.get_context("spawn")
    job = Job(recipe, stage, material, start, told)
    exchange = Exchange(torch.zeros(recipe.processes, size).share_memory_(), context.Barrier(recipe.processes))
    others = [
        context.Process(target=_work, args=(rank, job, tokenizer.to_str(), exchange), daemon=True)
        for rank in range(1, recipe.processes)
    ]
    for other in others:
        other.start()
    _learn(0, job, (tokenizer, network), exchange)
    for other in others:
        other.join()
    return network.merge().eval(), tokenizer, told


@dataclass(frozen=True)
class Exchange:
    """`gradients`: shared memory (processes, weights), one row per worker; `barrier` lets all of them meet."""

    gradients: torch.Tensor
    barrier: Barrier

    def mean(self, rank: int, parameters: list[torch.nn.Parameter]) -> None:
        """Replaces every gradient by its mean over the workers, summed in the same order everywhere."""
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self.gradients[rank] = torch.cat([gradient.flatten() for gradient in own])
        self.barrier.wait(timeout=600)
        mean = self.gradients.mean(0)
        self.barrier.wait(timeout=600)
        for parameter, part_of in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part_of.view_as(parameter)


class Job(Struct, frozen=True):
    """What every worker is told."""

    recipe: Recipe
    stage: Stage
    material: Material
    start: Path | None
    told: Lessons


def _network(recipe: Recipe, tokenizer: Tokenizer, start: Path | None, told: Lessons) -> Network:
    torch.manual_seed(recipe.seed)
    return Network(recipe, tokenizer, start, told)


def _work(rank: int, job: Job, told: str, exchange: Exchange) -> None:
    """The other workers' whole life: the same start, other samples, the same steps."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_str(told)
    _learn(rank, job, (tokenizer, _network(job.recipe, tokenizer, job.start, job.told)), exchange)


def _learn(rank: int, job: Job, learner: tuple[Tokenizer, Network], exchange: Exchange) -> None:
    """All steps of one worker; the first one tells how far it is."""
    recipe, stage, material = job.recipe, job.stage, job.material
    tokenizer, network = learner
    torch.manual_seed(stage.seed + rank)
    encoder = Encoder(tokenizer, answers_of(material))
    seed = stage.seed + 1000 * rank
    told, corpus = job.told, Corpus(material, seed, job.told.further, stage.strange)
    stream = batches(encoder, corpus, recipe.batch, seed, told.rows, stage.whole)
    optimizers = _optimizers(network, recipe, stage.rate)
    parameters = list(network.parameters())
    began, running = time.monotonic(), 0.0
    network.train()
    for step, batch in enumerate(islice(stream, stage.steps)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = network.loss(batch)
        loss.backward()
        exchange.mean(rank, parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        _update(optimizers, stage.rate * _schedule(step, recipe.warmup, stage.steps))
        running += (loss.item() - running) * (0.02 if step else 1.0)
        if rank == 0 and (step + 1) % 50 == 0:
            spent = time.monotonic() - began
            left = spent / (step + 1) * (stage.steps - step - 1)
            _say(f"step {step + 1}/{stage.steps}  loss {running:.3f}  {spent:.0f} s, {left:.0f} s left")


def _update(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress


def answers_of(material: Material) -> list[str]:
    """Every text the model may answer with."""
    return [*(fact.answer for fact in material.facts), REFUSAL]


def save(model: Any, tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Writes what Hugging Face programs expect: bf16 weights, tokenizer, chat template, generation defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_bytes(json.format(json.encode(told), indent=2) + b"\n")
    end, filler = token_id(tokenizer, END), token_id(tokenizer, PAD)
    generation = {"eos_token_id": end, "pad_token_id": filler, "do_sample": False, "max_new_tokens": 128}
    _transformers().GenerationConfig(**generation).save_pretrained(folder)


def load(folder: Path) -> tuple[Any, Tokenizer]:
    """The checkpoint back, in float32 and eval mode."""
    model = _transformers().Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), _transformers().PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer


def _config(recipe: Recipe, tokenizer: Tokenizer) -> Any:
    return _transformers().Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def _texts(material: Material, seed: int) -> Iterator[str]:
    """What the tokenizer learns from: varied questions and every answer several times."""
    for sample in islice(Corpus(material, seed), 40_000):
        yield sample.turns[-1][1]
    for word in english_words(8000):
        yield from [f" {word}"] * 6
    for answer in answers_of(material):
        yield from [answer] * 40


def _optimizers(network: Network, recipe: Recipe, rate: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024, scaled to AdamW's step size) for the layers' matrices, AdamW for everything else."""
    named = [(name, p) for name, p in network.named_parameters() if p.ndim == 2 and ".layers." in name]
    chosen = {id(p) for _, p in named}
    others = [p for p in network.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon([p for _, p in named], lr=rate, weight_decay=recipe.decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def _schedule(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, level, and over the last 30 % of the steps linearly down to 2 %."""
    if step < warmup:
        return (step + 1) / warmup
    return min(1.0, 0.02 + 0.98 * (steps - step) / (0.3 * steps))


def main() -> None:
    """Trains and saves; with `--hold N` every N-th question is kept from training and scored instead."""
    asks = argparse.ArgumentParser(description="Train the demo model.")
    asks.add_argument("--out", type=Path, default=FOLDER)
    asks.add_argument("--hold", type=int, default=0, help="keep every N-th question from training, to tune on")
    asks.add_argument("--first", type=int, default=0, help="begin with this stage, from the weights in --out")
    given = asks.parse_args()
    recipe = Recipe()
    material = load_material()
    told = None
    for at, stage in enumerate(recipe.stages):
        if at >= given.first:
            start = given.out if at else None
            model, tokenizer, told = train(recipe, part(material, given.hold, held=False), stage, start, told)
            save(model, tokenizer, given.out, recipe.context)
    model, tokenizer = load(given.out)
    encoder = Encoder(tokenizer, answers_of(material))
    held = part(material, given.hold, held=True)
    scores: dict[str, float] = {}
    for name, asked in {
        "frames": frame_questions(material, 1500),
        "free_held": free_questions(held),
        "refused_held": refusal_questions(held),
    }.items():
        right = verdicts(model, encoder, asked)
        scores[name] = sum(right) / max(1, len(right))
        if given.hold and name != "frames":
            missed = [turn.turns[-1][1] for turn, good in zip(asked, right, strict=True) if not good]
            (given.out / f"missed_{name}.txt").write_text("\n".join(missed) + "\n", encoding="utf-8")
    print(json.encode(scores).decode())  # noqa: T201 - the result


if __name__ == "__main__":
    main()
