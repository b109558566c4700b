"""A shim in a process of its own, to be killed: ``python loader.py CGROUP CAP_PKTS [SUFFIX]`` caps all flows."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from reinet.kshim import kernel
from reinet.kshim.leases import LeaseKeeper

# Names that no other shim takes after the kill, unless it is meant to.
kernel._SUFFIXES = sys.argv[3:] or [str(100 + os.getpid() % 900)]
with kernel.KernelShim([Path(sys.argv[1])]) as shim:
    keeper = LeaseKeeper(shim)
    print(json.dumps(shim.wrappers), flush=True)
    while True:
        records = shim.poll(timeout_ms=20)
        keeper.set(records, np.full(len(records), int(sys.argv[2]), np.uint32))
        keeper.tick(time.monotonic_ns())
