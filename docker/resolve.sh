#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Asks the package index whether every dependency resolves for each supported Python, from wheels alone; installs nothing.
# Usage: docker/resolve.sh [3.10 3.11 ...]      Needs a pip of 24 or newer: that of .venv, or PIP="... -m pip".
set -eu
cd "$(dirname "$0")/.."
pip=${PIP:-.venv/bin/python -m pip}
requirements=$(mktemp) && scratch=$(mktemp -d)
trap 'rm -rf "$requirements" "$scratch"' EXIT
"${pip%% *}" - > "$requirements" <<'LIST'
try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    data = tomllib.load(file)
project = data["project"]
extras = [name for group in project["optional-dependencies"].values() for name in group]
print("\n".join(data["build-system"]["requires"] + project["dependencies"] + extras))
LIST
for version in "${@:-3.10 3.11 3.12 3.13}"; do
  for python in $version; do
    $pip install --quiet --dry-run --ignore-installed --only-binary=:all: --python-version "$python" \
      --target "$scratch" -r "$requirements"
    echo "Python $python: resolves"
  done
done
