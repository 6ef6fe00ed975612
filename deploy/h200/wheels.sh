#!/usr/bin/env bash
# Fetch wheels for a GPU machine that can fetch nothing itself: deploy/h200/wheels.sh [--peers]. They land in .whl (ignored).
set -euo pipefail
cd "$(dirname "$0")/../.."
platforms=()
for tag in 2_39 2_36 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${tag}_x86_64"); done
lists=(-r deploy/h200/wheels.txt)
if [[ "${1:-}" == "--peers" ]]; then lists+=(-r deploy/h200/peer-wheels.txt); fi
"${PYTHON:-python3}" -m pip download --no-deps --only-binary=:all: --python-version "${DEVICE_PYTHON:-3.12}" \
  --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl "${lists[@]}"
du -sh .whl
