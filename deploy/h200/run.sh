#!/usr/bin/env bash
# One of the two device runs, each under ten minutes: deploy/h200/run.sh right|fast [FOLDER FOR RESULTS]
# Installs what .whl holds beside the machine's own packages, says what it runs on, runs the stages, leaves JSON and a page.
set -uo pipefail
cd "$(dirname "$0")/../.."
what="${1:?right or fast}"
out="${2:-device-results}"
site="$(mktemp -d)"
if compgen -G ".whl/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl || exit
fi
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/nearhit-triton}"
python3 -c 'import msgspec, llguidance, tokenizers, safetensors, transformers, triton, torch; assert torch.cuda.is_available()' || {
  echo "something is missing: see deploy/h200/README.md"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv
python3 -m engine.device_bench "$what" --out "$out" --seconds "${SECONDS_ALLOWED:-545}"
