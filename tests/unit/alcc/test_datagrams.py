"""Laws over UDP: all bytes arrive, nobody who did not ask is answered, and nothing forged counts."""

import errno
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.relay import Relay
from reinet.alcc._alcc import UdpReceiver, UdpSender
from reinet.alcc.datagrams import COOKIE, HELLO, Received, Receiver, _ask, parse_address, send
from reinet.core.errors import ConfigError, TransferError

REINET = Path(sys.executable).with_name("reinet")
LAWS = ["copa", "verus", "sprout"]


class _Receiving:
    """A receiver in a thread, and what it got."""

    def __init__(self, out: Path) -> None:
        self.receiver = Receiver(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self.receiver.port)
        self.out = out
        self.received: Received | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._receive)

    def _receive(self) -> None:
        try:
            with self.receiver, self.out.open("wb") as file:
                self.received = self.receiver.receive(20.0, file.fileno())
        except Exception as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def ended(self) -> Received:
        self._thread.join(40.0)
        if self.error:
            raise self.error
        assert self.received is not None
        return self.received


@contextmanager
def _receiving(out: Path) -> Iterator[_Receiving]:
    receiving = _Receiving(out)
    receiving.start()
    yield receiving
    receiving.ended()


def _noise(size_bytes: int) -> np.ndarray:
    return np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("size_bytes", [0, 1, 100_003])
def test_all_bytes_arrive(law: str, size_bytes: int, tmp_path: Path) -> None:
    data = _noise(size_bytes)
    with _receiving(tmp_path / "out") as receiving:
        sent = send(receiving.address, law, 10.0, data)
    assert (tmp_path / "out").read_bytes() == data.tobytes()
    assert sent.sent_bytes == size_bytes
    assert sent.ignored_datagrams == 0
    assert sent.seconds < 10.0, "it ends with the data"


@pytest.mark.parametrize("law", LAWS)
def test_all_bytes_arrive_over_a_path_that_loses_swaps_and_repeats(law: str, tmp_path: Path) -> None:
    data = _noise(150_001)
    with (
        _receiving(tmp_path / "out") as receiving,
        Relay(receiving.address, lost=0.05, swapped=0.1, repeated=0.05) as relay,
    ):
        sent = send(relay.address, law, 30.0, data)
        received = receiving.ended()
    digest = hashlib.sha256((tmp_path / "out").read_bytes()).digest()
    assert digest == hashlib.sha256(data.tobytes()).digest()
    assert sent.lost_pkts > 0
    assert sent.sent_pkts > received.received_bytes // 1500
    assert received.duplicate_pkts > 0


def test_what_has_not_gone_by_the_deadline_is_left_out(tmp_path: Path) -> None:
    with _receiving(tmp_path / "out") as receiving:
        sent = send(receiving.address, "copa", 0.3)
        received = receiving.ended()
    assert sent.sent_bytes == received.received_bytes == (tmp_path / "out").stat().st_size > 0
    assert sent.seconds == pytest.approx(0.3, abs=1e-5)
    assert sent.throughput_mbps > 0
    assert sent.rtt_mean_ms > 0
    assert sent.cpu_s > 0


def _forged(datagram: bytes, kind: str) -> bytes:
    """An ACK as somebody on the way could make it who cannot read what the receiver got."""
    fields = list(struct.unpack("<cBHIQQQ", datagram))
    if kind == "token":
        fields[4] ^= 1
    elif kind == "mark":
        fields[6] ^= 1
    elif kind == "unsent":
        fields[5] += 10_000
    return struct.pack("<cBHIQQQ", *fields)


def test_forged_acks_and_other_datagrams_count_for_nothing(tmp_path: Path) -> None:
    forged = 0

    def inject(datagram: bytes, back: bool) -> list[bytes]:
        nonlocal forged
        if not back or datagram[:1] != b"A":
            return []
        # "A" with done for a packet that is no end must not end the transfer either.
        done = b"A\x01" + datagram[2:24] + bytes(8)
        hostile = [_forged(datagram, kind) for kind in ("token", "mark", "unsent")]
        hostile += [b"", b"A", datagram + b"x", bytes(32), b"D" + datagram[1:], done, b"\xff" * 1400]
        forged += len(hostile)
        return hostile

    data = _noise(60_000)
    with _receiving(tmp_path / "out") as receiving, Relay(receiving.address, inject=inject) as relay:
        sent = send(relay.address, "copa", 20.0, data)
    assert (tmp_path / "out").read_bytes() == data.tobytes()
    assert forged > 100
    assert 0.5 * forged < sent.ignored_datagrams <= forged  # the last ones come when it is over
    assert sent.lost_pkts == 0


def test_an_ack_that_is_repeated_counts_once(tmp_path: Path) -> None:
    data = _noise(60_000)
    with (
        _receiving(tmp_path / "out") as receiving,
        Relay(receiving.address, inject=lambda d, back: [d] if back and d[:1] == b"A" else []) as relay,
    ):
        sent = send(relay.address, "copa", 20.0, data)
    assert sent.ignored_datagrams > 20


def test_the_receiver_takes_nothing_that_is_not_its_senders(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    def inject(datagram: bytes, back: bool) -> list[bytes]:
        if back or datagram[:1] != b"D":
            return []
        kind, flag, length, pad, token, number, mark, offset = struct.unpack_from("<cBHIQQQQ", datagram)
        rest = rng.bytes(len(datagram) - 40)  # other bytes at the same place: taken, they would show

        def told(**change: Any) -> bytes:
            now = {"kind": kind, "length": length, "token": token, "offset": offset, **change}
            return (
                struct.pack("<cBHIQQQQ", now["kind"], flag, now["length"], pad, now["token"], number, mark,
                            now["offset"]) + rest
            )  # fmt: skip

        return [told(token=token ^ 1), told(kind=b"X"), told(length=length - 1), told(length=0), told(offset=1 << 40),
                told()[:39], rng.bytes(100), b""]  # fmt: skip

    data = _noise(60_000)
    with _receiving(tmp_path / "out") as receiving, Relay(receiving.address, inject=inject) as relay:
        send(relay.address, "copa", 20.0, data)
        received = receiving.ended()
    assert (tmp_path / "out").read_bytes() == data.tobytes()
    assert received.ignored_datagrams > 100


def _wait_in_vain(receiver: Receiver) -> None:
    with pytest.raises(TransferError):
        receiver.receive(0.5)


def _answers(receiver: Receiver, datagrams: list[bytes]) -> list[bytes]:
    """What a stranger hears who sends these."""
    got = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", receiver.port))
        stranger.settimeout(0.2)
        for datagram in datagrams:
            stranger.send(datagram)
        thread = threading.Thread(target=_wait_in_vain, args=(receiver,))
        thread.start()
        try:
            while True:
                got.append(stranger.recv(2048))
        except TimeoutError:
            pass
        thread.join()
    return got


def test_the_receiver_answers_nobody_without_a_token_and_never_at_length() -> None:
    hello = HELLO.pack(b"RNH1", b"nonce678")
    data = struct.pack("<cBHIQQQQ", b"D", 0, 4, 0, 12345, 0, 1, 0) + b"data"
    with Receiver(("127.0.0.1", 0)) as receiver:
        answers = _answers(receiver, [data, hello[:-1], hello + b"x", b"", b"RNH1", b"E" * 40, bytes(1400), hello])
        assert [answer[:12] for answer in answers] == [b"RNC1" + b"nonce678"]
        assert len(answers[0]) < len(hello)
        assert receiver.ignored_datagrams == 7
        again = _answers(receiver, [hello])
        assert COOKIE.unpack(again[0])[2] != COOKIE.unpack(answers[0])[2], "another port, another token"


def test_a_token_of_another_receiver_is_worth_nothing() -> None:
    with Receiver(("127.0.0.1", 0)) as one, Receiver(("127.0.0.1", 0)) as other:
        assert one._token(("127.0.0.1", 5)) != other._token(("127.0.0.1", 5))
        assert one._token(("127.0.0.1", 5)) != one._token(("127.0.0.2", 5))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: send(("127.0.0.1", 9), "cubic", 1.0), "copa"),
        (lambda: send(("127.0.0.1", 9), "copa", 0.0), "at most 600"),
        (lambda: send(("127.0.0.1", 9), "copa", None), "no end of its own"),
        (lambda: send(("127.0.0.1", 9), "copa", 601.0), "at most 600"),
        (lambda: send(("224.0.0.1", 9), "copa", 1.0), "many hosts"),
        (lambda: send(("255.255.255.255", 9), "copa", 1.0), "many hosts"),
        (lambda: parse_address("nowhere"), "HOST:PORT"),
        (lambda: parse_address("nowhere", "0.0.0.0"), "PORT or ADDRESS:PORT"),
        (lambda: parse_address(":80"), "HOST:PORT"),
        (lambda: parse_address("host:0"), "HOST:PORT"),
        (lambda: parse_address("::1:80"), "HOST:PORT"),
        (lambda: Receiver(("192.0.2.1", 5000)), "cannot be listened at"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinet.alcc.datagrams.HELLO_AGAIN_S", 0.02)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(TransferError, match="no receiver answers"):
            send(silent.getsockname(), "copa", 1.0)


TOO_BIG = """
import socket, struct
import numpy as np
from reinet.alcc._alcc import UdpSender
silent, sock = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
router = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
silent.bind(("127.0.0.1", 0))
sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # no packet is cut up, as datagrams.py has it
sock.connect(silent.getsockname())
sender = UdpSender(sock.fileno(), 1, "copa", np.zeros(9000, np.uint8), False, 10_000_000, 1000, 1)
assert not sender.step(1000)
loopback = socket.inet_aton("127.0.0.1")
quoted = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1500, 0, 0x4000, 64, socket.IPPROTO_UDP, 0, loopback, loopback)
quoted += struct.pack("!HHHH", sock.getsockname()[1], silent.getsockname()[1], 1480, 0)
message = struct.pack("!BBHHH", 3, 4, 0, 0, 1000) + quoted
total = sum(struct.unpack(f"!{len(message) // 2}H", message))
total = (total & 0xFFFF) + (total >> 16)
router.sendto(message[:2] + struct.pack("!H", 0xFFFF - total) + message[4:], ("127.0.0.1", 0))
assert sender.step(5_000_000)
print(sender.failure)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, to speak as a router")
def test_a_router_that_calls_packets_too_big_ends_the_transfer_with_words() -> None:
    """In a network of its own: the host would believe it for ten minutes, for all of its loopback."""
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1"', sys.executable, TOO_BIG]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "MTU must be 1500" in done.stdout


def test_a_socket_that_fails_ends_the_transfer_with_words() -> None:
    with socket.socket() as broken:  # not connected
        sender = UdpSender(broken.fileno(), 1, "copa", _noise(9000), False, 10_000_000, 1000, 1)
        assert sender.step(5_000_000)
        assert "cannot be sent to any more" in sender.failure
        receiver = UdpReceiver(broken.fileno(), 1, -1)
        assert receiver.step(5_000_000)
        assert "nothing can be received" in receiver.failure


def test_a_host_that_cannot_be_reached_is_said() -> None:
    class Unreachable(socket.socket):
        def send(self, *_: object) -> int:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    with (
        Unreachable(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        pytest.raises(TransferError, match=r"10\.0\.0\.2:5000 cannot be reached: No route"),
    ):
        _ask(sock, ("10.0.0.2", 5000))


def test_a_file_is_sent_to_its_end_unless_a_time_is_given(tmp_path: Path) -> None:
    data = _noise(3_000_000)
    with (
        _receiving(tmp_path / "out") as receiving,
        Relay(receiving.address, inject=lambda *_: (time.sleep(0.0005), [])[1]) as relay,
    ):
        sent = send(relay.address, "copa", 0.3, data)
        received = receiving.ended()
    assert sent.unsent_bytes == len(data) - sent.sent_bytes > 0
    assert received.cut_short
    with _receiving(tmp_path / "out") as receiving:
        sent = send(receiving.address, "copa", None, data)
        received = receiving.ended()
    assert (tmp_path / "out").read_bytes() == data.tobytes()
    assert (sent.unsent_bytes, received.cut_short) == (0, False)


def _command_ends(sending: list[str], receiving: list[str]) -> tuple[tuple[int, str], tuple[int, str]]:
    """Run ``reinet send`` at both ends; return the exit status and the words of each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listening = [str(REINET), "send", "--udp", "--listen", f"127.0.0.1:{port}", "--seconds", "60", *receiving]
    with subprocess.Popen(listening, stderr=subprocess.PIPE, text=True) as receiver:
        sent = subprocess.run(
            [str(REINET), "send", "--udp", f"127.0.0.1:{port}", *sending],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        _, words = receiver.communicate(timeout=60)
    return (sent.returncode, sent.stderr), (receiver.returncode, words)


def test_the_command_says_where_a_file_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(100_000_000))
    ours, theirs = _command_ends(
        ["--file", str(tmp_path / "in"), "--seconds", "0.2"], ["--file", str(tmp_path / "out")]
    )
    assert ours[0] == theirs[0] == 1
    assert "bytes have not gone in 0.2 s" in ours[1]
    assert "cut short" in theirs[1]
    assert (tmp_path / "out").stat().st_size < 100_000_000


def test_the_command_sends_a_file_from_one_end_to_the_other(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(_noise(50_000).tobytes())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listening = [str(REINET), "send", "--udp", "--listen", f"127.0.0.1:{port}", "--seconds", "60"]
    with subprocess.Popen([*listening, "--file", str(tmp_path / "out"), "--json", str(tmp_path / "json")]) as receiver:
        sending = [str(REINET), "send", "--udp", "--law", "sprout", f"127.0.0.1:{port}", "--seconds", "20"]
        done = subprocess.run(
            [*sending, "--file", str(tmp_path / "in"), "--json", "-"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert receiver.wait(60) == 0
    assert done.returncode == 0, done.stderr
    assert '"throughput_mbps"' in done.stdout
    assert '"rtt_p95_ms"' in done.stdout
    assert '"received_bytes": 50000' in (tmp_path / "json").read_text()
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    refused = subprocess.run([str(REINET), "send", "10.0.0.1:5"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--udp" in refused.stderr


OUTAGE = """
import subprocess, sys, threading, time
from reinet.alcc.datagrams import Receiver, send
def away():
    for after_s, change in zip((0.5, 0.3), sys.argv[2:], strict=True):
        time.sleep(after_s)
        subprocess.run(change, shell=True, check=True)
receiver = Receiver(("127.0.0.1", 0))
threads = [threading.Thread(target=receiver.receive, args=(5.0, -1)), threading.Thread(target=away)]
for thread in threads:
    thread.start()
sent = send(("127.0.0.1", receiver.port), sys.argv[1], 2.0, None)
print(sent.seconds)
"""


RULES_BACK = "ip rule add pref 0 lookup local; ip rule del pref 7"
OUTAGES = {
    "no route": ("ip route flush table local", "ip route add local 127.0.0.0/8 dev lo table local"),
    "a blackhole": ("ip rule add pref 7 blackhole; ip rule del pref 0", RULES_BACK),
    "a prohibited one": ("ip rule add pref 7 prohibit; ip rule del pref 0", RULES_BACK),
    "a firewall": ("iptables -A OUTPUT -p udp -j DROP", "iptables -D OUTPUT 1"),
}
"""What takes packets no more, and what takes it back."""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, to have a route go away")
@pytest.mark.parametrize(
    ("law", "outage"), [*((law, "no route") for law in LAWS), *(("verus", outage) for outage in list(OUTAGES)[1:])]
)
def test_a_route_that_is_gone_for_a_moment_ends_no_transfer(law: str, outage: str) -> None:
    """Three errors in a row did, within a few milliseconds."""
    if "iptables" in OUTAGES[outage][0] and not shutil.which("iptables"):
        pytest.skip("no iptables")
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" -c "$@"', sys.executable, OUTAGE, law]
    done = subprocess.run([*inside, *OUTAGES[outage]], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(2.0, abs=0.5)
