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
echo "reinet: installing Python packages into $venv (torch: $flavour build)"
if [ $flavour = cpu ]; then
  # A local wheel or mirror first; PyTorch's own index only where that has none, and for torch only.
  pip install -c "$constraints" torch 2>/dev/null ||
    pip install -c "$constraints" --extra-index-url https://download.pytorch.org/whl/cpu torch
fi
# Built with tools of this environment, not of an isolated one: that lies in a new folder each time, so that nothing
# compiled once would serve again, neither the next set-up nor the test of the wheel.
pip install -c "$constraints" $("$venv/bin/python" docker/build_requires.py)
more=$("$venv/bin/python" docker/build_requires.py --of-backend)
[ -z "$more" ] || pip install -c "$constraints" $more
pip install -c "$constraints" --no-build-isolation -e '.[train,serve,trainer,sweep,rllib,dev]'
echo "reinet: ready; try $venv/bin/reinet doctor"
