#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up a checkout: system packages (packages.sh), a virtual environment, torch for this machine, reinet itself.
# Usage: docker/setup.sh [VENV]      PYTHON=python3.12 docker/setup.sh picks another interpreter.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-python3}

docker/packages.sh ${CI:+--bench --browser --servers}  # CI runs every test, those with a web server or a browser too

"$python" - <<'CHECK'
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"reinet needs Python 3.10 to 3.13, this is {sys.version.split()[0]}: set PYTHON=python3.11 (say) and run again")
CHECK

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# uv and system policies may forbid pip to touch anything but this environment; all calls go through its own pip.
pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip --quiet "$@"; }
pip install --upgrade 'pip>=24'

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then flavour=gpu; else flavour=cpu; fi
constraints=docker/constraints-$flavour.txt
extras="train serve trainer sweep rllib dev"
echo "reinet: installing Python packages into $venv (torch: $flavour build)"
# Built with tools of this environment, not of an isolated one: that lies in a new folder each time, so that nothing
# compiled once would serve again, neither the next set-up nor the test of the wheel.
pip install -c "$constraints" $("$venv/bin/python" docker/build_requires.py)
more=$("$venv/bin/python" docker/build_requires.py --of-backend)
[ -z "$more" ] || pip install -c "$constraints" $more

# The native parts are compiled beside pip, which fetches, unpacks and compiles for two minutes on one core. The last installation
# finds them built, or says what failed.
built=$(mktemp -d)
"$venv/bin/python" -I -c 'import sys; from scikit_build_core import build; build.build_editable(sys.argv[1])' "$built" \
  >/dev/null 2>&1 &
building=$!
trap 'kill $building 2>/dev/null || true; rm -rf "$built"' EXIT
if [ $flavour = cpu ]; then
  # A local wheel or mirror first; PyTorch's own index only where that has none, and for torch only.
  pip install -c "$constraints" torch 2>/dev/null ||
    pip install -c "$constraints" --extra-index-url https://download.pytorch.org/whl/cpu torch
fi
pip install -c "$constraints" $("$venv/bin/python" docker/build_requires.py --to-run $extras)
wait "$building" || true
pip install -c "$constraints" --no-build-isolation -e ".[$(echo "$extras" | tr ' ' ,)]"
echo "reinet: ready; try $venv/bin/reinet doctor"
