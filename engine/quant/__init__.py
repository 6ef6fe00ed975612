"""Weights and cached keys and values in fewer bits: what there is (`KINDS`), how it is made, what it costs."""

KINDS = ("none", "int8", "int4", "fp8")
KV_KINDS = ("auto", "float32", "bfloat16", "int8", "fp8")
