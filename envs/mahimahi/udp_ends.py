"""Both ends of a flow over UDP as programs around a link, in the place of ``reinet-sender`` and ``reinet-receiver``.

They are told and say what those are and do (``helpers/sender.c``). The receiver is inside the shells, whose translation
of addresses lets nobody in who was not asked: it speaks first. ::

    receiver -- b"RNP1" + token --> sender        python -m reinet.envs.mahimahi.udp_ends receive PORT
             <-- b"RNP2" ---------                python -m reinet.envs.mahimahi.udp_ends send LAW
             -- b"RNP3" --------->                then data and ACKs, as in alcc/udp/wire.hpp
"""

import json
import os
import resource
import secrets
import select
import socket
import sys
import time

import numpy as np

from reinet.alcc._alcc import UdpReceiver, UdpSender
from reinet.alcc.datagrams import BLOCK_BYTES, SOCKET_BUFFER_BYTES

WAIT_S = 60.0
"""As long as a link waits for its parts (START_TIMEOUT_S)."""
AGAIN_S = 0.2
STEP_US = 20_000
LONGEST_US = 600_000_000


def _say(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def _asked_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _cpu_us() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round((usage.ru_utime + usage.ru_stime) * 1e6)


def _expect(sock: socket.socket, kind: bytes, again: bytes | None = None) -> tuple[bytes, tuple[str, int]]:
    """Returns the first datagram of that kind and its sender, asking again for it meanwhile."""
    until_s = time.monotonic() + WAIT_S
    sock.settimeout(AGAIN_S if again else WAIT_S)
    while time.monotonic() < until_s:
        try:
            if again:
                sock.send(again)
            while True:
                datagram, peer = sock.recvfrom(2048)
                if datagram.startswith(kind):
                    return datagram, peer
        except TimeoutError:
            continue
    sys.exit(f"no {kind!r} came in {WAIT_S:g} s")


def send(law: str) -> None:
    """Sends noise under a law to the receiver that speaks first, until standard input ends or says anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        sock.bind(("0.0.0.0", 0))
        _say("listening", port=sock.getsockname()[1])
        hello, peer = _expect(sock, b"RNP1")
        sock.connect(peer)
        asked_s = time.monotonic()
        _expect(sock, b"RNP3", again=b"RNP2")
        rtt_us = round((time.monotonic() - asked_s) * 1e6)
        sock.settimeout(None)
        block = np.frombuffer(secrets.token_bytes(BLOCK_BYTES) * 2, np.uint8)
        _say("flow", cookie=0, cc=law, port=peer[1])
        before_us = _cpu_us()
        token = int.from_bytes(hello[4:12], "little")
        _say("sending", time_ns=time.monotonic_ns())
        sender = UdpSender(sock.fileno(), token, law, block, True, LONGEST_US, rtt_us, secrets.randbits(63))
        while not _asked_to_end():
            if sender.step(STEP_US):
                sys.exit(sender.failure or "the longest flow is over")
        ended_ns, cpu_us = time.monotonic_ns(), _cpu_us() - before_us
        counts = sender.counts()
        _say(
            "closed", cookie=0, sent_bytes=counts["sent_bytes"], acked_bytes=counts["acked_bytes"],
            retrans_pkts=counts["lost_pkts"], finished=False,
        )  # fmt: skip
        _say("end", time_ns=ended_ns, cpu_us=cpu_us)


def receive(port: int) -> None:
    """Takes what the sender outside the shells has, and drops it, until it is ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        sock.connect((os.environ["MAHIMAHI_BASE"], port))
        token = secrets.token_bytes(8)
        _expect(sock, b"RNP2", again=b"RNP1" + token)
        sock.send(b"RNP3")
        sock.settimeout(None)
        receiver = UdpReceiver(sock.fileno(), int.from_bytes(token, "little"), -1)
        while not receiver.step(STEP_US * 10):
            pass


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2])
    else:
        receive(int(sys.argv[2]))
