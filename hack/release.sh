#!/usr/bin/env bash
# What a release needs besides images: the packaged chart, a bill of materials for each lock, and an audit of it.
# Writes to dist/; ends with an error where a locked package has a known vulnerability.
# Needs `make lint` to have built .venv once. AUDIT=skip leaves the audit out where its database cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
CYCLONEDX=cyclonedx-bom==7.5.0
PIP_AUDIT=pip-audit==2.10.1
mkdir -p dist
for lock in operator engine-cpu; do
  .venv/bin/uv tool run --quiet --from "$CYCLONEDX" cyclonedx-py requirements "requirements/$lock.txt" \
    --pyproject pyproject.toml --output-reproducible --output-file "dist/$lock.cdx.json"
  echo "dist/$lock.cdx.json: $(grep -c '"purl"' "dist/$lock.cdx.json") packages"
done
.venv/bin/python -c 'import helm_python as helm; print(helm.package("charts/kvserving", destination="dist"))'
if [ "${AUDIT:-}" != skip ]; then
  for lock in operator engine-cpu; do
    .venv/bin/uv tool run --quiet --from "$PIP_AUDIT" pip-audit --strict --require-hashes --disable-pip --requirement "requirements/$lock.txt"
  done
fi
