#!/usr/bin/env bash
# Compile every kernel for sm_90 here, with the GPU machine's Triton, into .kernels (ignored by git): deploy/h200/kernels.sh
# Needs a Python with that machine's torch and Triton (PYTHON, or a virtual environment made in .kernels-python). A cache that
# does not fit the machine's Triton is passed over there, and the run compiles anew with all its processors: about 20 s.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  "python${DEVICE_PYTHON:-3.12}" -m venv .kernels-python
  python=.kernels-python/bin/python
  "$python" -m pip install -q "torch==${DEVICE_TORCH:-2.11.0}" "triton==${DEVICE_TRITON:-3.6.0}" -r deploy/h200/wheels.txt \
    "transformers==${DEVICE_TRANSFORMERS:-5.17.0}" jinja2 numpy safetensors setuptools tokenizers
fi
rm -rf .kernels
PYTHONPATH="$PWD" TRITON_DEFAULT_FP_FUSION=1 "$python" -m engine.device_bench.ahead .kernels
# Only these are read again.
find .kernels -type f ! -name '*.cubin' ! -name '*.json' -delete
rm -f compiled-ahead.jsonl
du -sh .kernels
