"""A token per row, drawn with noise that anyone can compute again, and its log probability (Triton).

Knows: logits, temperatures, two words of noise per row. Does not know: penalties, filters, grammars (those rows are
drawn by `engine.sampler`, whose noise this repeats).

Adding Gumbel noise to logits over temperature and taking the maximum draws from the softmax (arXiv 1411.0030). The
vocabulary is cut into chunks, one program each; the second kernel looks at what every chunk found.
"""

# Triton's dialect: types come from what a kernel is handed, and what is bound from compile-time constants.
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
import triton
import triton.language as tl


@triton.jit
def _scramble(x):
    """MurmurHash3's 32-bit finalizer, as in engine.sampler."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _gumbel(token, first, second):
    """-log(-log(u)), u = (hash + 1/2) / 2^32. Near 1 the logarithm of u is taken from 1 - u: float32 ends there."""
    bits = _scramble(_scramble((token.to(tl.uint32) * 0x9E3779B1) ^ first) ^ second)
    upper = bits >= 0x80000000
    small = tl.where(upper, 0xFFFFFFFF - bits, bits).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    rest = 1.0 - small
    # log(1 - small), exact for the smallest too (Goldberg 1991, theorem 4)
    near = tl.where(rest == 1.0, small, -tl.log(rest) * small / tl.where(rest == 1.0, 1.0, 1.0 - rest))
    return -tl.log(tl.where(upper, near, -tl.log(small)))


@triton.jit
def draw(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    logits_ptr, temperature_ptr, words_ptr, found_ptr, token_ptr, V, chunks, CHUNK: tl.constexpr
):  # fmt: skip
    """grid (B, chunks): of one chunk: best score, its logit, maximum, sum of exponentials, whether all are finite."""
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    real = v < V
    x = tl.load(logits_ptr + row * V + v, mask=real, other=float("-inf")).to(tl.float32)
    broken = tl.sum((real & ((x != x) | (tl.abs(x) == float("inf")))).to(tl.int32), 0)
    temperature = tl.load(temperature_ptr + row)
    score = x
    if temperature > 0:
        first = tl.load(words_ptr + row * 2).to(tl.uint32, bitcast=True)
        second = tl.load(words_ptr + row * 2 + 1).to(tl.uint32, bitcast=True)
        score = tl.where(real, x / temperature + _gumbel(v, first, second), float("-inf"))
    at = tl.argmax(score, 0)
    best = tl.max(score, 0)
    top = tl.max(x, 0)
    place = row * chunks + tl.program_id(1)
    tl.store(found_ptr + place * 4, best)
    tl.store(found_ptr + place * 4 + 1, tl.max(tl.where(tl.arange(0, CHUNK) == at, x, float("-inf")), 0))
    tl.store(found_ptr + place * 4 + 2, top)
    tl.store(found_ptr + place * 4 + 3, tl.sum(tl.exp(x - top), 0))
    tl.store(token_ptr + place, tl.where(broken > 0, -1, tl.program_id(1) * CHUNK + at))


@triton.jit
def choose(found_ptr, token_ptr, out_ptr, logprob_ptr, chunks, CHUNKS: tl.constexpr):
    """grid (B,): the best of all chunks, and its log probability under the model alone."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS)
    there = c < chunks
    place = row * chunks + c
    score = tl.load(found_ptr + place * 4, mask=there, other=float("-inf"))
    logit = tl.load(found_ptr + place * 4 + 1, mask=there, other=float("-inf"))
    top = tl.load(found_ptr + place * 4 + 2, mask=there, other=float("-inf"))
    total = tl.load(found_ptr + place * 4 + 3, mask=there, other=0.0)
    token = tl.load(token_ptr + place, mask=there, other=0)
    chosen = c == tl.argmax(score, 0)
    highest = tl.max(top, 0)
    whole = tl.sum(tl.where(there, total * tl.exp(top - highest), 0.0), 0)
    broken = tl.min(token, 0) < 0
    tl.store(out_ptr + row, tl.where(broken, -1, tl.sum(tl.where(chosen, token, 0), 0)))
    tl.store(logprob_ptr + row, tl.max(tl.where(chosen, logit, float("-inf")), 0) - highest - tl.log(whole))
