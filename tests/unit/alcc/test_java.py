"""The Java client: bytes over plain TCP and TLS, and peers that stall, leave or talk nonsense."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.places import ROOT
from reinet.agents.learn import mdi
from reinet.alcc import jvm
from reinet.core.errors import ReinetError

pytestmark = pytest.mark.java

PASSWORD = "of-a-test"
HEADER = struct.Struct(">cIH")
ANSWER = struct.Struct(">cIQ")
"""The wire, told a second time: alcc/java/Wire.java has the first."""
FRAME_BYTES = 1400
CHECKS = ["numbers", "flight", "splits", "garbage", "untaken", "walk", "bounds", "neighbour", "sizes", "large", "pause"]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client and its checks; javac is told that its warnings are errors."""
    return jvm.compile_client(tmp_path_factory.mktemp("classes"), [ROOT / "tests" / "helpers" / "java" / "Checks.java"])


@contextlib.contextmanager
def _client(classes: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        jvm.command(classes, "Main", *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "REINET_ALCC_PASSWORD": PASSWORD},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _listening(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    event = json.loads(line)
    assert event["event"] == "listening"
    return f"127.0.0.1:{event['port']}"


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def _failure(process: subprocess.Popen[str], status: int = 1) -> str:
    """What it said as it failed; it must not have hung, nor shown a trace of its insides."""
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert "\tat " not in err, err
    return err


@pytest.fixture(scope="module")
def said(classes: Path) -> list[str]:
    command = jvm.command(classes, "Checks")
    done = subprocess.run([*command[:-3], "-Xmx16m", *command[-3:]], capture_output=True, text=True, timeout=300)
    return [*done.stdout.splitlines(), done.stderr]


@pytest.mark.parametrize("check", CHECKS)
def test_what_needs_the_clients_insides_holds(said: list[str], check: str) -> None:
    assert f"{check} ok" in said, said[-1]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A key with its certificate, and the same certificate to trust in."""
    folder = tmp_path_factory.mktemp("stores")
    keys, trust, certificate = (str(folder / name) for name in ("keys.p12", "trust.p12", "certificate"))
    common = ["-alias", "test", "-storetype", "PKCS12", "-storepass", PASSWORD]
    for words in (
        ["-genkeypair", "-keyalg", "EC", "-dname", "CN=test", "-ext", "san=ip:127.0.0.1", "-keystore", keys],
        ["-exportcert", "-keystore", keys, "-file", certificate],
        ["-importcert", "-noprompt", "-file", certificate, "-keystore", trust],
    ):
        subprocess.run(["keytool", *words, *common], check=True, capture_output=True)
    return keys, trust


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(("size_bytes", "window"), [(0, "none"), (1, "mdi"), (12_000_001, "mdi")])
def test_a_file_arrives_as_it_was(
    classes: Path, tmp_path: Path, size_bytes: int, window: str, tls: bool, request: pytest.FixtureRequest
) -> None:
    keys, trust = request.getfixturevalue("stores") if tls else ("", "")
    given, taken = tmp_path / "given", tmp_path / "taken"
    given.write_bytes(os.urandom(size_bytes))
    listen = ["receive", "--listen", "0", "--file", str(taken), *(["--tls", keys] if tls else [])]
    with _client(classes, *listen) as receiver:
        send = ["send", "--connect", _listening(receiver), "--file", str(given), "--window", window]
        with _client(classes, *send, *(["--tls", trust] if tls else [])) as sender:
            sent = _result(sender)
        received = _result(receiver)
    assert taken.read_bytes() == given.read_bytes()
    assert sent["sent_bytes"] == sent["acked_bytes"] == received["received_bytes"] == size_bytes


def test_a_certificate_that_nobody_vouched_for_is_refused(
    classes: Path, stores: tuple[str, str], tmp_path: Path
) -> None:
    strange = str(tmp_path / "strange.p12")
    subprocess.run(
        ["keytool", "-genkeypair", "-alias", "test", "-keyalg", "EC", "-dname", "CN=test", "-ext", "san=ip:127.0.0.1",
         "-keystore", strange, "-storetype", "PKCS12", "-storepass", PASSWORD], check=True, capture_output=True,
    )  # fmt: skip
    with (
        _client(classes, "receive", "--listen", "0", "--tls", strange) as receiver,
        _client(classes, "send", "--connect", _listening(receiver), "--tls", stores[1], "--window", "none") as sender,
    ):
        assert "SSLHandshakeException" in _failure(sender)
        _failure(receiver)


@contextlib.contextmanager
def _peer(classes: Path, *words: str) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    """A client and, connected to it, a socket on which the test is the peer."""
    with _client(classes, *words, "--listen", "0") as process:
        host, _, port = _listening(process).partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as peer:
            yield peer, process


def _read(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := peer.recv(count - len(data))):
        data += chunk
    return data


def test_no_more_is_in_flight_than_the_window_and_a_receiver_that_stalls_is_named(classes: Path) -> None:
    with _peer(classes, "send", "--window", "fixed:3", "--stall-seconds", "2") as (peer, sender):
        peer.sendall(b"RJA1")
        assert _read(peer, 4) == b"RJA1"
        frames = _read(peer, 3 * (HEADER.size + FRAME_BYTES))
        assert [HEADER.unpack_from(frames, i * (HEADER.size + FRAME_BYTES)) for i in range(3)] == [
            (b"D", i, FRAME_BYTES) for i in range(3)
        ]
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        peer.settimeout(20)
        peer.sendall(ANSWER.pack(b"A", 1, 5))
        for number in (3, 4):
            assert HEADER.unpack(_read(peer, HEADER.size)) == (b"D", number, FRAME_BYTES)
            _read(peer, FRAME_BYTES)
        began_s = time.monotonic()
        assert "nothing was acknowledged for 2.0 s, with 3 frames out" in _failure(sender)
        assert time.monotonic() - began_s < 10


def test_a_receiver_that_stops_reading_cannot_hold_a_sender_in_a_full_kernel(classes: Path) -> None:
    with _peer(classes, "send", "--window", "none", "--stall-seconds", "1") as (peer, sender):
        peer.sendall(b"RJA1")
        assert "nothing was acknowledged for 1.0 s" in _failure(sender)


@pytest.mark.parametrize(("answer", "complaint"), [
    (b"", "closed the connection before it had taken all"),
    (b"RJA1", "closed the connection before it had taken all"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak this protocol"),
    (b"RJA1" + ANSWER.pack(b"A", 3, 0), "acknowledges frame 3"),
    (b"RJA1" + ANSWER.pack(b"A", 0xFFFFFFFF, 0), "acknowledges frame 4294967295"),
    (b"RJA1" + ANSWER.pack(b"F", 0, 0), "before it has acknowledged all"),
    (b"RJA1" + bytes(100), "unknown kind 0"),
])  # fmt: skip
def test_a_sender_says_what_was_wrong_with_its_receiver(classes: Path, answer: bytes, complaint: str) -> None:
    with _peer(classes, "send", "--window", "fixed:3") as (peer, sender):
        _read(peer, 4 + 3 * (HEADER.size + FRAME_BYTES))
        with contextlib.suppress(OSError):  # reset already
            peer.sendall(answer)
            peer.shutdown(socket.SHUT_WR)
        assert complaint in _failure(sender)


@pytest.mark.parametrize(("data", "complaint"), [
    (b"", "without saying that it was all (after frame 0, byte 0)"),
    (b"RJA1" + HEADER.pack(b"D", 0, 3) + b"abc", "without saying that it was all (after frame 1, byte 3)"),
    (b"RJA1" + HEADER.pack(b"D", 0, 3) + b"ab", "without saying that it was all"),
    (b"GET / HTTP/1.1\r\n\r\n", "does not speak this protocol"),
    (b"RJA1" + HEADER.pack(b"D", 1, 3) + b"abc", "a frame has number 1 (after frame 0"),
    (b"RJA1" + HEADER.pack(b"D", 0, 0xFFFF), "a frame has 65535 bytes"),
    (b"RJA1" + HEADER.pack(b"D", 0, 0), "a frame has 0 bytes"),
    (b"RJA1" + HEADER.pack(b"X", 0, 3), "unknown kind 88"),
])  # fmt: skip
def test_a_receiver_says_what_was_wrong_with_its_sender(
    classes: Path, tmp_path: Path, data: bytes, complaint: str
) -> None:
    with _peer(classes, "receive", "--file", str(tmp_path / "out")) as (peer, receiver):
        with contextlib.suppress(OSError):  # reset already
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
        assert complaint in _failure(receiver)


def test_a_receiver_does_not_wait_for_a_silent_sender(classes: Path) -> None:
    with _peer(classes, "receive", "--stall-seconds", "1") as (peer, receiver):
        peer.sendall(b"RJA1")
        assert "nothing came for 1.0 s" in _failure(receiver)


@pytest.mark.parametrize(("words", "complaint"), [
    ([], "say send or receive"), (["send"], "give --connect"), (["send", "--listen"], "its value is missing"),
    (["send", "--connect", "a:1", "--window", "fixed:0"], "give a number from"),
    (["send", "--connect", "a:1", "--window", "best"], "choose mdi, none or fixed:N"),
    (["receive", "--connect", "nowhere"], "write HOST:PORT"), (["receive", "--colour", "red"], "is no option"),
])  # fmt: skip
def test_wrong_usage_is_named(classes: Path, words: list[str], complaint: str) -> None:
    with _client(classes, *words) as process:
        assert complaint in _failure(process, status=2)


def test_a_source_that_javac_would_only_warn_of_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "Raw.java"
        raw.write_text("package reinet.alcc; class Raw { java.util.List list; }")
        with pytest.raises(ReinetError, match=r"does not compile.*rawtypes"):
            jvm.compile_client(Path(folder), [raw])


DRAWS = 4000


def _rows() -> dict[tuple[int, ...], list[int]]:
    """The matrix' states, read a second way."""
    found = {}
    for line in (jvm.SOURCES / "verus.tsv").read_text().splitlines():
        if line.startswith("state"):
            state, counts = line.removeprefix("state\t").split(":")
            found[tuple(map(int, state.split()))] = list(map(int, counts.split()))
    return found


def test_the_walk_draws_from_the_row_of_its_state(classes: Path) -> None:
    """A flow at 3.5 times its least delay that rose by a tenth, after a rise by a tenth under an unchanged window."""
    level, delay = int(np.digitize(3.5, mdi.LEVELS)), int(np.digitize(1.1, mdi.DELAY_RATIOS))
    still = int(np.digitize(1.0, mdi.WINDOW_RATIOS))
    row = _rows()[level, delay, delay, still]
    assert sum(row) >= mdi.LEAST_COUNT
    command = jvm.command(classes, "Checks", "draw", str(DRAWS))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    drawn = Counter(round(float(word), 6) for word in done.stdout.split())
    steps = next(line for line in (jvm.SOURCES / "verus.tsv").read_text().splitlines() if "window_steps" in line)
    for step, count in zip(map(float, steps.split()[1:]), row, strict=True):
        share = count / sum(row)
        deviation = (share * (1 - share) / DRAWS) ** 0.5
        assert drawn.pop(step, 0) / DRAWS == pytest.approx(share, abs=5 * deviation), f"step {step}"
    assert not drawn


@pytest.mark.parametrize(("change", "complaint"), [
    (("epoch_ms", "epoch"), "epoch_ms is missing"),
    (("window_steps\t0.", "window_steps\t0.1\t0."), "has not one step"),
    (("state\t0\t0\t:", "state\t0\t:"), "verus.tsv:8: a state is two or four bins"),
    (("state", "#"), "no state is in it"),
    (("state\t0\t0\t:\t0", "state\t0\t0\t:\t-1"), "verus.tsv:8: a count of -1"),
])  # fmt: skip
def test_a_damaged_matrix_is_refused_by_name_and_line(
    classes: Path, tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    (tmp_path / "verus.tsv").write_text((jvm.SOURCES / "verus.tsv").read_text().replace(*change))
    command = [word.replace(str(jvm.SOURCES), str(tmp_path)) for word in jvm.command(classes, "Main")]
    done = subprocess.run(
        [*command, "send", "--connect", "127.0.0.1:1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert complaint in done.stderr


def test_the_ends_of_a_link_say_what_its_own_say(classes: Path) -> None:
    with subprocess.Popen(
        jvm.command(classes, "LinkEnd", "send", "mdi"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as sender:
        assert sender.stdout is not None
        assert sender.stdin is not None
        listening = json.loads(sender.stdout.readline())
        assert listening["event"] == "listening"
        with subprocess.Popen(
            jvm.command(classes, "LinkEnd", "receive", str(listening["port"])),
            env={**os.environ, "MAHIMAHI_BASE": "127.0.0.1"},
        ) as receiver:
            flow, sending = (json.loads(sender.stdout.readline()) for _ in range(2))
            assert (flow["event"], flow["cc"], sending["event"]) == ("flow", "java mdi", "sending")
            assert abs(sending["time_ns"] - time.monotonic_ns()) < 20e9
            time.sleep(0.3)
            sender.stdin.close()
            closed, end = (json.loads(sender.stdout.readline()) for _ in range(2))
            assert receiver.wait(60) == 0
    assert (closed["event"], end["event"]) == ("closed", "end")
    assert 0 < closed["acked_bytes"] <= closed["sent_bytes"]
    assert end["time_ns"] - sending["time_ns"] > 0.3e9
    assert end["cpu_us"] > 0
