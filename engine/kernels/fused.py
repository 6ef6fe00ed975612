"""Norms, rotary embedding, cache writes and gates, each in one pass over its rows (Triton).

Knows: rows of a step, slots of the cache. Does not know: attention, models.

All arithmetic is float32. These kernels move bytes and compute next to nothing: what counts is that each value is read
once, and that one launch does the work of several (at batch 1 a launch costs as much as the weights it waits for).
"""

# Triton's dialect: types come from what a kernel is handed, and what is bound from compile-time constants.
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
import triton
import triton.language as tl


@triton.jit
def add_norm(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    x_ptr, branch_ptr, weight_ptr, out_ptr, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """grid (T,): x += branch in place (float32), out = rms_norm(x) * weight."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, PADDED)
    inside = d < WIDTH
    x = tl.load(x_ptr + row * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(branch_ptr + row * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_ptr + row * WIDTH + d, x, mask=inside)
    weight = tl.load(weight_ptr + d, mask=inside, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon) * weight
    tl.store(out_ptr + row * WIDTH + d, normed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_and_write(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    qkv_ptr, positions_ptr, slots_ptr, cos_ptr, sin_ptr, norm_ptr, q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, epsilon, most,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TURNED: tl.constexpr,
    TOGETHER: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """grid (T, (H + 2G) / TOGETHER): TOGETHER heads of one row: norm and turn queries and keys; keys, values to pages.

    TOGETHER divides H and G, so a program has heads of one kind. `most`: the largest number that pages can hold.
    """
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * TOGETHER
    head = start + tl.arange(0, TOGETHER)
    d = tl.arange(0, PADDED)
    inside = d < HEAD
    mask = tl.full([TOGETHER, 1], 1, tl.int1) & inside[None, :]
    from_ptr = qkv_ptr + row * ((HEADS + 2 * KV_HEADS) * HEAD) + head[:, None] * HEAD
    x = tl.load(from_ptr + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if start < HEADS + KV_HEADS:
        if NORM:
            shrink = tl.rsqrt(tl.sum(x * x, 1) / HEAD + epsilon)[:, None]
            x = x * shrink * tl.load(norm_ptr + head[:, None] * HEAD + d[None, :], mask=mask, other=0.0)
        if TURNED > 0:
            other = tl.where(d < TURNED, (d + TURNED // 2) % TURNED, d)  # the dimension that d is turned with
            position = tl.load(positions_ptr + row).to(tl.int64)
            cos = tl.load(cos_ptr + position * HEAD + d, mask=inside, other=1.0)
            sin = tl.load(sin_ptr + position * HEAD + d, mask=inside, other=0.0)
            y = tl.load(from_ptr + other[None, :], mask=mask, other=0.0).to(tl.float32)
            if NORM:
                y = y * shrink * tl.load(norm_ptr + head[:, None] * HEAD + other[None, :], mask=mask, other=0.0)
            x = x * cos[None, :] + y * sin[None, :]
    if start < HEADS:
        to_ptr = q_ptr + (row * HEADS + head)[:, None] * HEAD + d[None, :]
        tl.store(to_ptr, x.to(q_ptr.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots_ptr + row).to(tl.int64)
        if start < HEADS + KV_HEADS:
            _write(x, slot * KV_HEADS + head - HEADS, k_ptr, ks_ptr, mask, d, most, HEAD, SCALED)
        else:
            _write(x, slot * KV_HEADS + head - HEADS - KV_HEADS, v_ptr, vs_ptr, mask, d, most, HEAD, SCALED)


@triton.jit
def _write(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    x, place, to_ptr, scale_ptr, mask, d, most, HEAD: tl.constexpr, SCALED: tl.constexpr
):  # fmt: skip
    """Store rows `x` at `place`; SCALED: each with a scale of its own that makes its largest value `most`."""
    if SCALED:
        scale = tl.maximum(tl.max(tl.abs(x), 1) / most, 1e-12)
        tl.store(scale_ptr + place, scale)
        x = x / scale[:, None]
        if to_ptr.dtype.element_ty == tl.int8:
            x = tl.floor(x + 0.5)
    tl.store(to_ptr + place[:, None] * HEAD + d[None, :], x.to(to_ptr.dtype.element_ty), mask=mask)


@triton.jit
def activate(x, SILU: tl.constexpr):
    """silu, or gelu in its tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3))."""
    if SILU:
        return x / (1.0 + tl.exp(-x))
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def gate(both_ptr, out_ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SILU: tl.constexpr):
    """grid (T, WIDTH / COLUMNS): act(first half) * second half of rows [2 * WIDTH]."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = d < WIDTH
    first = tl.load(both_ptr + row * (2 * WIDTH) + d, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(both_ptr + row * (2 * WIDTH) + WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    result = activate(first, SILU) * second
    tl.store(out_ptr + row * WIDTH + d, result.to(out_ptr.dtype.element_ty), mask=inside)
