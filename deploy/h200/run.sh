#!/usr/bin/env bash
# One of the two device runs, each under ten minutes: deploy/h200/run.sh right|fast [FOLDER FOR RESULTS]
# Installs what .whl holds beside the machine's own packages, takes the kernels of .kernels, says what it runs on, runs the
# stages. Rows and a page are on disk after each of them: a run that is stopped loses the stage it was in.
set -uo pipefail
cd "$(dirname "$0")/../.."
what="${1:?right or fast}"
out="${2:-device-results}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
rm -f "$out/$what.jsonl" "$out/$what.log"
export HOME="${HOME:-/tmp}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TRITON_DEFAULT_FP_FUSION=1
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/nearhit-triton}"
export FLASHINFER_WORKSPACE_BASE="${FLASHINFER_WORKSPACE_BASE:-/tmp}" TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor}"
export PATH="$PATH:/usr/local/cuda/bin"
python="${PYTHON:-python3}"
sites="$PWD"
install() { # wheels of folder $1, beside what is there; a fault is told in the results and costs what needs them
  compgen -G "$1/*.whl" >/dev/null || return 0
  local site told
  site="$(mktemp -d)"
  told="$("$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$1"/*.whl 2>&1)" ||
    "$python" -c 'import json, sys; print(json.dumps({"stage": "machine", "name": "wheels of " + sys.argv[1], "fault": sys.argv[2][-300:]}))' \
      "$1" "$told" | tee -a "$out/$what.jsonl"
  sites="$sites:$site"
}
install .whl
install .whl/peers
export PYTHONPATH="$sites"
mkdir -p "$TRITON_CACHE_DIR"
if [[ -d .kernels ]]; then cp -r .kernels/. "$TRITON_CACHE_DIR"; fi
"$python" engine/device_bench/machine.py "$out" "$what" || { echo "something is missing: see deploy/h200/README.md"; exit 1; }
# What is left of ten minutes, with half a minute for the way back.
exec "$python" -m engine.device_bench "$what" --out "$out" --seconds "${SECONDS_ALLOWED:-$((570 - SECONDS < 550 ? 570 - SECONDS : 550))}"
