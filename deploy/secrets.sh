#!/bin/sh
# Prints a fresh .env for docker-compose.yml:  deploy/secrets.sh > .env
# Keep it: NEARHIT_SECRET verifies every API key that was ever handed out, and the passwords open the volumes.
set -eu
# The file was made by the caller's shell, under the caller's umask.
if [ -f /dev/stdout ]; then
  chmod 600 /dev/stdout || echo "nearhit: let nobody else read this file (chmod 600)" >&2
fi
draw() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
cat <<END
NEARHIT_ADMIN_KEY=sk-nh-admin-$(draw 24)
NEARHIT_SECRET=$(draw 32)
POSTGRES_PASSWORD=$(draw 16)
REDIS_PASSWORD=$(draw 16)
GRAFANA_PASSWORD=$(draw 8)
END
