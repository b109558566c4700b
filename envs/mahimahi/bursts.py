"""UDP that goes on and off, and a count of what arrives: for the tunnel (``tunnel``), whose ends are both root's.

::

    python -m reinet.envs.mahimahi.bursts send HOST     python -m reinet.envs.mahimahi.bursts receive HOST

They say that they have ``began``, run until standard input ends and then say the ``bytes`` of their datagrams as an
event ``bursts``.
"""

import json
import select
import socket
import sys
import time

PORT = 5006
DATAGRAM_BYTES = 1400
RATE_MBPS = 20.0
"""In the midst of the 10 to 30 Mbit/s that the paper of ALCC sends through its tunnel of 40 (section 5.9)."""
ON_S = OFF_S = 5.0
"""Several turns a minute, each long enough for a window to grow and to be cut."""
STEP_S = 0.002
SLACK_BYTES = 50_000
"""A sender that was late sends no more than this in one go: the tunnel has a queue of 500 packets."""


def _asked_to_end(wait_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def send(host: str) -> int:
    """Sends bursts until standard input ends; returns the bytes."""
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        print(json.dumps({"event": "began"}), flush=True)
        began_s, due = time.monotonic(), 0.0
        before_s = began_s
        while not _asked_to_end(STEP_S):
            now_s = time.monotonic()
            if (now_s - began_s) % (ON_S + OFF_S) < ON_S:
                due = min(due + (now_s - before_s) * RATE_MBPS * 1e6 / 8, SLACK_BYTES)
            before_s = now_s
            while due >= DATAGRAM_BYTES:
                sent += sock.sendto(bytes(DATAGRAM_BYTES), (host, PORT))
                due -= DATAGRAM_BYTES
    return sent


def receive(host: str) -> int:
    """Counts what comes until standard input ends; returns the bytes."""
    got = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, PORT))
        print(json.dumps({"event": "began"}), flush=True)
        while True:
            ready, _, _ = select.select([sock, sys.stdin], [], [])
            if sys.stdin in ready:
                return got
            got += len(sock.recv(2048))


if __name__ == "__main__":
    print(json.dumps({"event": "bursts", "bytes": {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2])}))
