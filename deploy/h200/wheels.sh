#!/usr/bin/env bash
# Fetch wheels for a GPU machine that can fetch nothing itself: deploy/h200/wheels.sh [--peers]. They land in .whl, those of
# peers in .whl/peers (both ignored by git): what breaks a peer's packages must not keep the engine from running.
set -euo pipefail
cd "$(dirname "$0")/../.."
platforms=()
for tag in 2_39 2_36 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${tag}_x86_64"); done
fetch() {
  "${PYTHON:-python3}" -m pip download --no-deps --only-binary=:all: --python-version "${DEVICE_PYTHON:-3.12}" \
    --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$1" -r "$2"
}
rm -rf .whl
fetch .whl deploy/h200/wheels.txt
if [[ "${1:-}" == "--peers" ]]; then fetch .whl/peers deploy/h200/peer-wheels.txt; fi
du -sh .whl
