#!/bin/bash
# Builds the image and runs the stack of docker-compose.yml for real, on a machine without a Docker engine or images to
# pull: Debian, root, podman with runc. Ends with 0 only when every check of deploy/proof/check.py held.
#   apt-get install -y --no-install-recommends podman runc buildah debootstrap netavark aardvark-dns iptables
# KEEP=1 leaves the stack running. SUITE and MIRROR go to debootstrap. About ten minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in podman runc debootstrap python3; do
  command -v "$tool" >/dev/null || { echo "$tool is not on this machine; see the head of this file" >&2; exit 1; }
done

scratch="$(mktemp -d)"
cat > "$scratch/containers.conf" <<END
[engine]
runtime = "runc"
[network]
network_backend = "netavark"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
END
export CONTAINERS_CONF="$scratch/containers.conf"
export BASE=localhost/debian-py:bookworm COMPOSE_PROJECT_NAME=nearhit-proof

step() { printf '\n== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)"; }

step "base image, in place of python:3.11-slim-bookworm"
if ! podman image exists "$BASE"; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip \
    "${SUITE:-bookworm}" "$scratch/root" ${MIRROR:+"$MIRROR"} > "$scratch/debootstrap.log"
  tar -C "$scratch/root" -c . | podman import - "$BASE"
  rm -rf "$scratch/root"
fi

# What pip needs here (certificates, folders with wheels) is this machine's affair, so it is mounted for the build and
# does not enter the image.
mounts=()
python3 -m pip config list > "$scratch/pip.list"
python3 - "$scratch" > "$scratch/mounts" <<'END'
import pathlib, re, sys
scratch = pathlib.Path(sys.argv[1])
values = dict(re.match(r"(?:[\w:]*)\.([\w-]+)='(.*)'$", line).groups() for line in (scratch / "pip.list").read_text().splitlines())
lines = "".join(f"{name} = {value}\n" for name, value in values.items())
(scratch / "pip.conf").write_text(f"[global]\n{lines}".replace("\\n", "\n  "))
for value in values.values():
    for path in re.findall(r"(?:file://)?(/[^\s'\\]+)", value):
        found = pathlib.Path(path)
        if "://" not in path and found.exists():
            print(found.parent if found.name == "simple" else found)  # the files of an index lie beside it
END
mounts+=(--volume "$scratch/pip.conf:/etc/pip.conf:ro")
while read -r path; do mounts+=(--volume "$path:$path:ro"); done < <(sort -u "$scratch/mounts")
build=(podman build --format docker --isolation chroot --ulimit nofile=1024:1024 --network host --build-arg "BASE=$BASE")

step "stand-ins for the images of PostgreSQL and Redis"
podman image exists localhost/postgres:17-alpine ||
  "${build[@]}" -q -t localhost/postgres:17-alpine -f deploy/proof/postgres.Containerfile deploy/proof
podman image exists localhost/redis:8-alpine ||
  "${build[@]}" -q -t localhost/redis:8-alpine -f deploy/proof/redis.Containerfile deploy/proof

step "the image of nearhit, from the Dockerfile"
"${build[@]}" "${mounts[@]}" --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" -t localhost/nearhit:0.1.0 .
podman image inspect localhost/nearhit:0.1.0 --format 'size {{.Size}} user {{.Config.User}}'

step "podman-compose, in an environment of its own"
python3 -m venv "$scratch/compose" && "$scratch/compose/bin/pip" install --quiet podman-compose
deploy/secrets.sh > "$scratch/env"
export NEARHIT_PORT="${NEARHIT_PORT:-8080}" NEARHIT_PORT_B="${NEARHIT_PORT_B:-8082}"
# podman 4 does not know start_interval; everything else is taken as it stands
for file in docker-compose.yml deploy/proof/compose.yml; do
  sed -e '/start_interval:/d' -e "s#- \./#- $PWD/#" "$file" > "$scratch/$(basename "$(dirname "$file")")-$(basename "$file")"
done
compose() {
  "$scratch/compose/bin/podman-compose" --env-file "$scratch/env" --profile mock \
    -f "$scratch/.-docker-compose.yml" -f "$scratch/proof-compose.yml" "$@"
}
finish() {
  status=$?
  if [[ -z "${KEEP:-}" ]]; then
    ((status == 0)) || compose logs --tail 40 2>&1 | tail -n 200 || true
    compose down -v > "$scratch/down.log" 2>&1 || true
    rm -rf "$scratch"
  fi
  exit "$status"
}
trap finish EXIT

# podman without systemd has no timer for health checks, so `up --wait` is walked through by hand
healthy() {
  for _ in $(seq 120); do
    podman healthcheck run "$1" > /dev/null 2>&1 && { echo "$1 is healthy"; return; }
    sleep 1
  done
  echo "$1 did not become healthy" >&2
  return 1
}
name() { echo "${COMPOSE_PROJECT_NAME}_$1_1"; }

step "PostgreSQL and Redis"
compose up -d --no-build postgres redis > "$scratch/up.log" 2>&1 || { cat "$scratch/up.log"; exit 1; }
healthy "$(name postgres)"
healthy "$(name redis)"

step "migrate, once"
compose up -d --no-build --no-deps migrate > "$scratch/up.log" 2>&1 || { cat "$scratch/up.log"; exit 1; }
code="$(podman wait "$(name migrate)")"
podman logs "$(name migrate)" 2>&1 | tail -n 5
[[ "$code" == 0 ]] || { echo "migrate ended with $code" >&2; exit 1; }

step "two gateways and the mock upstream"
compose up -d --no-build --no-deps gateway gateway-b mock > "$scratch/up.log" 2>&1 || { cat "$scratch/up.log"; exit 1; }
healthy "$(name gateway)"
healthy "$(name mock)"

step "checks"
set -a; . "$scratch/env"; set +a
python3 deploy/proof/check.py "$NEARHIT_PORT" "$NEARHIT_PORT_B" "$(name gateway)" "$(name gateway-b)"
