"""What the kernels become for sm_90, without a GPU: `python -m engine.kernels.compiled`, one JSON object per line.

Knows: the kernels, the shapes they are used with, the assembler and disassembler that Triton's wheel brings. Does not
know: whether they are fast (a GPU tells). Registers, spills, the width of copies and the matrix instructions decide
most of that, and a change that loses them is seen here. Names of variants after the command choose some of them. Run it
with TRITON_INTERPRET unset or 0.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import triton
from msgspec import Struct
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import attention, fused, linear, sampling

_HOPPER = GPUTarget("cuda", 90, 32)
_BF16, _F32, _I32, _I8, _F8 = "*bf16", "*fp32", "*i32", "*i8", "*fp8e4nv"
_ALIGNED = [["tt.divisibility", 16]]  # torch's allocations are; without it copies are narrow


class Variant(Struct, frozen=True):
    """A kernel as it is launched: types of its run-time arguments, its constants, warps and stages."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3


class Facts(Struct, frozen=True):
    """`copies` from memory, of which `wide` are of 16 bytes and `asynchronous` go to shared memory by themselves.

    `hmma`, `hgmma`: matrix instructions of a warp and of four (wgmma).
    """

    name: str
    registers: int
    stack: int
    spills: int
    shared: int
    copies: int
    wide: int
    asynchronous: int
    hmma: int
    hgmma: int


_ATTEND = {
    "q_ptr": _BF16, "k_ptr": _BF16, "v_ptr": _BF16, "out_ptr": _BF16, "sums_ptr": _F32, "stats_ptr": _F32,
    "tiles_ptr": _I32, "blocks_ptr": _I32, "width": "i32", "split": "i32", "scale": "fp32",
}  # fmt: skip


def _attend(name: str, heads: int, kv_heads: int, rows: int, pages: str = _BF16, **changes: Any) -> Variant:
    constants = {
        "HEADS": heads, "KV_HEADS": kv_heads, "HEAD": 128, "PADDED": 128, "BLOCK": 16, "ROWS": rows, "KEYS": 64,
        "WINDOW": 0, "SOFTCAP": 0.0, "SCALED": pages != _BF16,
    }  # fmt: skip
    signature = _ATTEND | {"k_ptr": pages, "v_ptr": pages}
    if pages == _BF16:
        constants |= {"ks_ptr": None, "vs_ptr": None}
    else:
        signature |= {"ks_ptr": _F32, "vs_ptr": _F32}
    return Variant(name, attention.attend, signature, constants | changes, 8 if rows >= 128 else 4)


def _vector(
    name: str, weights: str, outputs: int = 4, *, norm: bool = False, gate: bool = False, add: bool = False
) -> Variant:
    signature = {"x_ptr": _F32 if norm else _BF16, "w_ptr": weights, "y_ptr": _F32 if add else _BF16, "epsilon": "fp32"}
    constants: dict[str, Any] = {
        "OUT": outputs, "IN": 1024, "STAGES": 3, "NORM": norm, "SCALED": weights != _BF16, "BIAS": False, "GATE": gate,
        "SILU": True, "ADD": add, "bias_ptr": None,
    }  # fmt: skip
    for pointer, given in (("norm_ptr", norm), ("scale_ptr", weights != _BF16)):
        if given:
            signature[pointer] = _F32
        else:
            constants[pointer] = None
    return Variant(name, linear.vector, signature | {"N": "i32", "K": "i32"}, constants)


_ROTATE = {
    "qkv_ptr": _BF16, "positions_ptr": _I32, "slots_ptr": _I32, "cos_ptr": _F32, "sin_ptr": _F32, "norm_ptr": _F32,
    "q_ptr": _BF16, "k_ptr": _BF16, "v_ptr": _BF16, "epsilon": "fp32", "most": "fp32",
}  # fmt: skip
_ROTATED = {
    "HEADS": 16, "KV_HEADS": 8, "HEAD": 128, "PADDED": 128, "TURNED": 128, "TOGETHER": 8, "NORM": True, "SCALED": False,
    "ks_ptr": None, "vs_ptr": None,
}  # fmt: skip
_MERGE = {"out_ptr": _BF16, "sums_ptr": _F32, "stats_ptr": _F32, "tiles_ptr": _I32, "split": "i32"}
_NORM = {"x_ptr": _F32, "branch_ptr": _BF16, "weight_ptr": _F32, "out_ptr": _BF16, "epsilon": "fp32"}
_MATRIX = {"x_ptr": _BF16, "w_ptr": _BF16, "y_ptr": _BF16, "M": "i32", "N": "i32", "K": "i32"}
_MATRIX_TILE = {"ROWS": 64, "OUT": 64, "IN": 64, "SCALED": False, "BIAS": False, "scale_ptr": None, "bias_ptr": None}
_DRAW = {
    "logits_ptr": _BF16, "temperature_ptr": _F32, "words_ptr": _I32, "found_ptr": _F32, "token_ptr": _I32,
    "V": "i32", "chunks": "i32",
}  # fmt: skip
_CHOOSE = {"found_ptr": _F32, "token_ptr": _I32, "out_ptr": _I32, "logprob_ptr": _F32, "chunks": "i32"}

VARIANTS = (
    _attend("decode, 2 heads a group", 16, 8, 16),
    _attend("decode, 4 heads a group", 32, 8, 16),
    _attend("decode, fp8 pages", 16, 8, 16, _F8),
    _attend("decode, int8 pages", 16, 8, 16, _I8),
    _attend("decode, heads of 64", 32, 8, 16, HEAD=64, PADDED=64),
    _attend("prefill, 64 rows", 32, 8, 64),
    _attend("prefill, 128 rows", 16, 8, 128),
    _attend("prefill, window and softcap", 16, 8, 64, WINDOW=4096, SOFTCAP=50.0),
    Variant("merge", attention.merge, _MERGE, {"HEADS": 32, "HEAD": 128, "PADDED": 128, "WINDOW": 0, "MERGED": 16}, 2),
    Variant("rotate and write", fused.rotate_and_write, _ROTATE, _ROTATED, 2),
    Variant("add and norm", fused.add_norm, _NORM, {"WIDTH": 4096, "PADDED": 4096, "ADD": True}, 8),
    Variant("gate", fused.gate, {"both_ptr": _BF16, "out_ptr": _BF16}, {"WIDTH": 12288, "COLUMNS": 1024, "SILU": True}),
    _vector("vector", _BF16),
    _vector("vector, a head", _BF16, 8),
    _vector("vector, normed and gated", _BF16, 2, norm=True, gate=True),
    _vector("vector, added", _BF16, add=True),
    _vector("vector, int8", _I8, norm=True),
    _vector("vector, fp8", _F8, norm=True),
    Variant("matrix", linear.matrix, _MATRIX, _MATRIX_TILE, 4, 4),
    Variant("draw", sampling.draw, _DRAW, {"CHUNK": 4096}, 8),
    Variant("choose", sampling.choose, _CHOOSE, {"CHUNKS": 64}, 1),
)


def compiled(variant: Variant) -> Facts:
    """Compile and disassemble one variant. Raises triton's CompilationError, CalledProcessError."""
    kernel = variant.kernel
    signature = variant.signature | dict.fromkeys(variant.constants, "constexpr")
    aligned = {(at,): _ALIGNED for at, name in enumerate(kernel.arg_names) if _is_aligned(name, signature[name])}
    source = ASTSource(fn=kernel, signature=signature, constexprs=variant.constants, attrs=aligned)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    built = triton.compile(source, target=_HOPPER, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage, code = (_cuobjdump(f"--dump-{what}", file.name) for what in ("resource-usage", "sass"))
    found = re.search(r"REG:(\d+).*?STACK:(\d+).*?LOCAL:(\d+)", usage)
    assert found is not None, usage
    copies = re.findall(r"\b(?:LDG|LDGSTS)\.E[.\w]*", code)
    return Facts(
        name=variant.name,
        registers=int(found[1]),
        stack=int(found[2]),
        spills=int(found[3]) + len(re.findall(r"\b(?:LDL|STL)\b", code)),
        shared=built.metadata.shared,
        copies=len(copies),
        wide=sum(".128" in copy for copy in copies),
        asynchronous=sum(copy.startswith("LDGSTS") for copy in copies),
        hmma=len(re.findall(r"\bHMMA\b", code)),
        hgmma=len(re.findall(r"\bHGMMA\b", code)),
    )


def _is_aligned(name: str, kind: str) -> bool:
    """Pointers, and the widths of matrices: Triton finds at run time that they are multiples of 16."""
    return kind.startswith("*") or name in ("K", "N", "V", "width")


def _cuobjdump(what: str, file: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, what, file], capture_output=True, text=True, check=True).stdout  # noqa: S603  (ours)


if __name__ == "__main__":
    for one in VARIANTS:
        if sys.argv[1:] and one.name not in sys.argv[1:]:
            continue
        sys.stdout.buffer.write(msgspec.json.encode(compiled(one)) + b"\n")
        sys.stdout.flush()
