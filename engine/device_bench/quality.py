"""What fewer bits cost, on the one trained model that is always here: the demo model's loss on its own test answers.

Knows: the demo checkpoint, its test questions. Does not know: speed.
"""

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from engine.blocks import blocks_for
from engine.cuda import CudaOptions, build
from engine.demo.evaluate import expected_answers, read_test
from engine.demo.facts import FOLDER
from engine.device_bench.models import Scale
from engine.device_bench.right import logits_of
from engine.locate import locate
from engine.models import loader

_QUESTIONS = 200


def demo_loss(scale: Scale, quant: str, kv_dtype: str) -> tuple[float, tuple[str, ...]]:
    """Mean loss in nats per token of the expected answers to test questions it never saw; what was not quantized.

    A question and its answer are one step: their keys and values are written to the pages and read from there.
    """
    decoder = loader.load(locate("demo"), "bfloat16", quant=quant, device=scale.device)
    runner = build(decoder, CudaOptions(sequences=4, step_tokens=512, blocks=64, kv_dtype=kv_dtype))
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    answers = expected_answers()
    total, count = 0.0, 0
    for line in read_test()[: scale.count(_QUESTIONS, 3)]:
        answer = answers.get(line.expected)
        if answer is None:
            continue
        asked = f"<|im_start|>user\n{line.question}<|im_end|>\n<|im_start|>assistant\n"
        prompt: list[int] = tokenizer.encode(asked).ids
        tokens: list[int] = prompt + tokenizer.encode(f"{answer}<|im_end|>").ids
        blocks = list(range(1, blocks_for(len(tokens)) + 1))
        logits = logits_of(runner, tokens, blocks, prompt=len(tokens))
        wanted = torch.tensor(tokens[len(prompt) :], device=logits.device)
        total += float(functional.cross_entropy(logits[len(prompt) - 1 : -1], wanted, reduction="sum"))
        count += len(wanted)
    return total / count, decoder.notes
