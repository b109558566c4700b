"""A daemon that caps every flow of programs at so many packets: ``python deciding.py SOCKET CAP_PKTS``.

Says ``ready`` when it listens, and ``capped`` once a record said that a cap is in force.
"""

import sys
from pathlib import Path

from reinet.alcc.joined import with_programs
from reinet.alcc.processes import listen
from reinet.core.period import PeriodConfig
from reinet.core.records import Flag
from reinet.kshim.fake import FakeShim
from reinet.kshim.leases import LeaseKeeper


def main(path: Path, cap_pkts: int) -> None:
    import time

    import numpy as np

    period = PeriodConfig(min_period_ns=5_000_000, packet_timed=False)
    shim = with_programs(FakeShim(), listen(path), period)
    keeper = LeaseKeeper(shim)
    print("ready", flush=True)
    told = False
    while True:
        records = shim.poll(50)
        if len(records):
            keeper.set(records, np.full(len(records), cap_pkts, np.uint32))
        live = records[(records["flags"] & Flag.CLOSED) == 0]
        if not told and (live["cap_pkts"] == cap_pkts).any():
            told = True
            print("capped", flush=True)
        keeper.tick(time.monotonic_ns())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
