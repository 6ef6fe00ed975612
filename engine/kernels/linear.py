"""Linear layers where libraries leave time on the table: one row, quantized weights, and one tiling for every batch.

Knows: weights in bfloat16, int8 and float8 with a scale per output. Does not know: models, layers.

With one row a linear layer is a stream of weights, and everything around it is launches: so `vector` reads the residual
stream, norms it on the way, and gates what it made; `vector_add` adds its result to the residual stream.
"""

# Triton's dialect: types come from what a kernel is handed, and what is bound from compile-time constants.
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
import triton
import triton.language as tl

from engine.kernels.fused import activate


@triton.jit
def _dot(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    x_ptr, norm_ptr, w_ptr, n, N, K,
    OUT: tl.constexpr, IN: tl.constexpr, NORM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs `n` [OUT] of one row, and the sum of its squares if it is normed (that factor can come last)."""
    sums = tl.zeros([OUT, IN], tl.float32)
    squares = tl.zeros([IN], tl.float32)
    for start in tl.range(0, K, IN, num_stages=STAGES):
        k = start + tl.arange(0, IN)
        inside = k < K
        x = tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += x * x
            x = x * tl.load(norm_ptr + k, mask=inside, other=0.0)
        mask = (n < N)[:, None] & inside[None, :]
        where = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
        w = tl.load(where, mask=mask, other=0.0, eviction_policy="evict_first")
        sums += w.to(tl.float32) * x[None, :]
    return tl.sum(sums, 1), tl.sum(squares, 0)


@triton.jit
def vector(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    x_ptr, norm_ptr, w_ptr, scale_ptr, bias_ptr, y_ptr, epsilon, N, K,
    OUT: tl.constexpr, IN: tl.constexpr, STAGES: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, SILU: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """grid (N / OUT,): y = linear(norm(x)) of one row. GATE: weights have 2N rows, y = act(first N) * last N.

    ADD: y += instead. Every element of y belongs to one program, so nothing is added in a changing order.
    """
    n = tl.program_id(0) * OUT + tl.arange(0, OUT)
    real = n < N
    y, squares = _dot(x_ptr, norm_ptr, w_ptr, n, N, K, OUT, IN, NORM, STAGES)
    shrink = 1.0
    if NORM:
        shrink = tl.rsqrt(squares / K + epsilon)
        y = y * shrink
    if SCALED:
        y = y * tl.load(scale_ptr + n, mask=real, other=0.0)
    if BIAS:
        y += tl.load(bias_ptr + n, mask=real, other=0.0).to(tl.float32)
    if GATE:
        second, _ = _dot(x_ptr, norm_ptr, w_ptr + N.to(tl.int64) * K, n, N, K, OUT, IN, NORM, STAGES)
        second = second * shrink
        if SCALED:
            second = second * tl.load(scale_ptr + N + n, mask=real, other=0.0)
        if BIAS:
            second += tl.load(bias_ptr + N + n, mask=real, other=0.0).to(tl.float32)
        y = activate(y, SILU) * second
    if ADD:
        y += tl.load(y_ptr + n, mask=real, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=real)


@triton.jit
def matrix(  # noqa: PLR0913  (a kernel is handed every pointer and size it uses)
    x_ptr, w_ptr, scale_ptr, bias_ptr, y_ptr, M, N, K,
    ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """grid (M / ROWS, N / OUT): linear(x). One tiling and one order of sums for every M."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * OUT + tl.arange(0, OUT)
    k = tl.arange(0, IN)
    x_at = x_ptr + m.to(tl.int64)[:, None] * K + k[None, :]
    w_at = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    sums = tl.zeros([ROWS, OUT], tl.float32)
    for start in range(0, K, IN):
        inside = (start + k < K)[None, :]
        x = tl.load(x_at + start, mask=(m < M)[:, None] & inside, other=0.0)
        w = tl.load(w_at + start, mask=(n < N)[:, None] & inside, other=0.0)
        sums += tl.dot(x, tl.trans(w.to(x.dtype)))
    if SCALED:
        sums = sums * tl.load(scale_ptr + n, mask=n < N, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y_at = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_at, sums.to(y_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
