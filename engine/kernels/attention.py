"""Attention over paged keys and values: one Triton kernel for prompts, decoding and both at once, and its merge.

Knows: tiles, block tables, ranges of keys. Does not know: models, requests, who shares a block.

A program takes one tile (rows of one sequence, times the query heads that share a key/value head, so that every key is
read once for all of them) and walks over keys with a running maximum and denominator (FlashAttention, arXiv
2205.14135). Decoding reads long contexts in ranges of fixed size by many programs (Flash-Decoding, 2311.01282): each
range leaves a partial result, and `_merge` adds them up in order, so that the sum is the same whoever else is there.
"""

# Triton's dialect: types come from what a kernel is handed, and what is bound from compile-time constants.
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
import triton
import triton.language as tl

LOG2E = 1.4426950408889634
MERGED = 16  # partial results merged at a time


@triton.jit
def _scan(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    q, low, high, at, live, k_ptr, v_ptr, ks_ptr, vs_ptr, blocks_ptr, kv_head, scale,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Rows `q` [ROWS, PADDED] at positions `at` over keys `low` to `high`: maximum, denominator, weighted sum."""
    d = tl.arange(0, PADDED)
    inside = d < HEAD
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    for n in range(low, high, KEYS):
        j = n + tl.arange(0, KEYS)
        known = j < high
        block = tl.load(blocks_ptr + j // BLOCK, mask=known, other=0).to(tl.int64)
        place = (block * BLOCK + j % BLOCK) * KV_HEADS + kv_head
        mask = known[:, None] & inside[None, :]
        keys = tl.load(k_ptr + place[:, None] * HEAD + d[None, :], mask=mask, other=0.0).to(q.dtype)
        values = tl.load(v_ptr + place[:, None] * HEAD + d[None, :], mask=mask, other=0.0).to(q.dtype)
        x = tl.dot(q, tl.trans(keys)).to(tl.float32) * scale
        if SCALED:
            x = x * tl.load(ks_ptr + place, mask=known, other=0.0)[None, :]
        if SOFTCAP > 0:
            x = SOFTCAP * (2.0 / (1.0 + tl.exp2(x * (-2.0 * 1.4426950408889634 / SOFTCAP))) - 1.0)
        seen = (j[None, :] <= at[:, None]) & known[None, :] & live[:, None]
        if WINDOW > 0:
            seen = seen & (j[None, :] > at[:, None] - WINDOW)
        x = tl.where(seen, x * 1.4426950408889634, float("-inf"))  # log2(e): exp2 is one instruction
        newest = tl.maximum(best, tl.max(x, 1))
        base = tl.where(newest == float("-inf"), 0.0, newest)  # a row that saw nothing yet
        weights = tl.exp2(x - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(weights, 1)
        if SCALED:
            weights = weights * tl.load(vs_ptr + place, mask=known, other=0.0)[None, :]
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values).to(tl.float32)
        best = newest
    return best, total, sums


@triton.jit
def attend(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, out_ptr, sums_ptr, stats_ptr, tiles_ptr, blocks_ptr, width, split, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """grid (tiles, KV_HEADS, programs). A tile with a single range is done at once; ranges leave partial results."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(1)
    tile_ptr = tiles_ptr + tl.program_id(0) * 8
    sequence = tl.load(tile_ptr)
    if sequence < 0:
        return
    row, rows = tl.load(tile_ptr + 1), tl.load(tile_ptr + 2)
    position, part = tl.load(tile_ptr + 3), tl.load(tile_ptr + 4)
    lane = tl.arange(0, ROWS)
    token, head = lane // GROUP, kv_head * GROUP + lane % GROUP
    live = token < rows
    at = position + token
    d = tl.arange(0, PADDED)
    mask = live[:, None] & (d < HEAD)[None, :]
    where = ((row + token).to(tl.int64) * HEADS + head)[:, None] * HEAD + d[None, :]
    q = tl.load(q_ptr + where, mask=mask, other=0.0)
    end = position + rows
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, position - WINDOW + 1)
    first, last = begin // split, (end - 1) // split
    for s in range(first + tl.program_id(2), last + 1, tl.num_programs(2)):
        low = tl.maximum(s * split, begin // KEYS * KEYS)
        high = tl.minimum(end, s * split + split)
        best, total, sums = _scan(
            q, low, high, at, live, k_ptr, v_ptr, ks_ptr, vs_ptr, blocks_ptr + sequence.to(tl.int64) * width, kv_head,
            scale, KV_HEADS, HEAD, PADDED, BLOCK, ROWS, KEYS, WINDOW, SOFTCAP, SCALED,
        )  # fmt: skip
        if first == last:
            done = sums / tl.where(total == 0, 1.0, total)[:, None]
            tl.store(out_ptr + where, done.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            mine = (part + s - first).to(tl.int64) * HEADS + head
            tl.store(sums_ptr + mine[:, None] * HEAD + d[None, :], sums, mask=mask)
            tl.store(stats_ptr + mine * 2, best, mask=live)
            tl.store(stats_ptr + mine * 2 + 1, total, mask=live)


@triton.jit
def merge(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    out_ptr, sums_ptr, stats_ptr, tiles_ptr, split,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, WINDOW: tl.constexpr, MERGED: tl.constexpr,
):  # fmt: skip
    """grid (tiles of one row, HEADS): add the ranges' partial results up, from the first to the last."""
    tile_ptr = tiles_ptr + tl.program_id(0) * 8
    if tl.load(tile_ptr) < 0:
        return
    row, position, part = tl.load(tile_ptr + 1), tl.load(tile_ptr + 3), tl.load(tile_ptr + 4)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, position - WINDOW + 1)
    count = position // split - begin // split + 1
    if count == 1:
        return
    head = tl.program_id(1)
    d = tl.arange(0, PADDED)
    inside = d < HEAD
    best = float("-inf")
    total = 0.0
    sums = tl.zeros([PADDED], tl.float32)
    for n in range(0, count, MERGED):
        s = n + tl.arange(0, MERGED)
        there = s < count
        mine = (part + s).to(tl.int64) * HEADS + head
        bests = tl.load(stats_ptr + mine * 2, mask=there, other=float("-inf"))
        totals = tl.load(stats_ptr + mine * 2 + 1, mask=there, other=0.0)
        more = tl.load(sums_ptr + mine[:, None] * HEAD + d[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        newest = tl.maximum(best, tl.max(bests, 0))
        shrink = tl.exp2(best - newest)
        weights = tl.exp2(bests - newest)
        total = total * shrink + tl.sum(totals * weights, 0)
        sums = sums * shrink + tl.sum(more * weights[:, None], 0)
        best = newest
    where = out_ptr + (row.to(tl.int64) * HEADS + head) * HEAD + d
    tl.store(where, (sums / total).to(out_ptr.dtype.element_ty), mask=inside)
