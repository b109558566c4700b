"""A server that keeps its one client's socket full and says every 10 ms how much of it the kernel holds.

``python steady.py``: prints its port, then ``MONOTONIC_S BYTES`` lines until its client goes.
"""

import fcntl
import select
import socket
import struct
import sys
import time

from server import SIOCOUTQ, listen

BLOCK = bytes(1 << 16)


def main() -> None:
    listener = listen()
    sock = listener.accept()[0]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)  # what lies there before a cap comes drains soon
    sock.setblocking(False)
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    said_s = 0.0
    while True:
        try:
            while True:
                sock.send(BLOCK)
        except BlockingIOError:
            pass
        except OSError:
            return
        if time.monotonic() - said_s > 0.01:
            said_s = time.monotonic()
            print(said_s, struct.unpack("i", fcntl.ioctl(sock, SIOCOUTQ, b"\0\0\0\0"))[0], flush=True)
        ready.poll(10)


if __name__ == "__main__":
    sys.exit(main())
