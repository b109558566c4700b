"""Other people's programs under the gate: nginx with its workers and a reload, a player, Python's server, curl."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.gated.server import MSS_BYTES, pattern
from helpers.gated.web import (
    PLAYER_RATES,
    SEGMENT_BYTES_PER_RATE,
    SEGMENTS,
    digest,
    fetched,
    free_port,
    needed,
    nginx,
    play,
    raw_fetch,
)
from reinet.alcc.sums import Sums

SIZES = (1, 1000, MSS_BYTES * 8, 100_000, 3_000_000)


@pytest.mark.parametrize("sendfile", ["on", "off"])
def test_nginx_serves_every_byte_also_while_it_reloads(sendfile: str, tmp_path: Path) -> None:
    report = Sums()
    with nginx(tmp_path, {str(size): pattern(size) for size in SIZES}, report, sendfile) as (process, port):
        with ThreadPoolExecutor(16) as clients:
            jobs = [(size, clients.submit(fetched, port, str(size))) for _ in range(8) for size in SIZES]
            process.send_signal(signal.SIGHUP)
            for size, job in jobs:
                assert job.result() == digest(pattern(size))
        process.send_signal(signal.SIGQUIT)
        assert process.wait(60) == 0
    assert report.total()["openings"] > 0
    assert "alert" not in (tmp_path / "error.log").read_text()


def test_two_hundred_clients_at_once_of_which_some_are_slow_and_some_leave(tmp_path: Path) -> None:
    size, report = 60_000, Sums()
    with nginx(tmp_path, {"file": pattern(size)}, report) as (process, port):
        with ThreadPoolExecutor(200) as clients:
            kinds = [("whole", "slow", "leaving")[0 if n % 10 < 8 else n % 10 - 7] for n in range(200)]
            jobs = [clients.submit(raw_fetch, port, "file", kind) for kind in kinds]
            got = [job.result() for job in jobs]
        assert fetched(port, "file") == digest(pattern(size)), "those that left took nobody with them"
        process.send_signal(signal.SIGQUIT)
        assert process.wait(60) == 0
    assert [what for what, kind in zip(got, kinds, strict=True) if kind != "leaving"] == [digest(pattern(size))] * 180
    assert report.total()["openings"] > 0


def test_a_player_gets_every_segment_of_every_rate(tmp_path: Path) -> None:
    """As DASH does it: segments over one connection, of a rate that the last ones allow, and pauses between them."""
    files = {f"{rate}-{number}": pattern(rate * SEGMENT_BYTES_PER_RATE + number)
             for rate in PLAYER_RATES for number in range(SEGMENTS)}  # fmt: skip
    report = Sums()
    with nginx(tmp_path, files, report) as (process, port):
        played = play(port)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(60) == 0
    assert len(played) == SEGMENTS
    assert {name: digest(files[name]) for name in played} == played
    assert len({name.partition("-")[0] for name in played}) > 1, "one rate only"
    assert report.total()["openings"] > 0


def test_python_http_server_under_reinet_run(tmp_path: Path) -> None:
    data = pattern(2_000_003)
    (tmp_path / "file").write_bytes(data)
    port = free_port()
    reinet = Path(sys.executable).with_name("reinet")
    command = [str(reinet), "run", "--law", "fixed:4", "--always", "--",
               sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/file", timeout=60) as answer:
                        assert answer.read() == data
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            else:
                pytest.fail("the server did not come up")
        finally:
            process.terminate()


def test_an_upload_by_curl_under_reinet_run() -> None:
    needed("curl", "--bench")
    import socket
    import threading

    data = pattern(1_500_001)
    got: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        sock = listener.accept()[0]
        body = b""
        while b"\r\n\r\n" not in body:
            body += sock.recv(1 << 16)
        if b"100-continue" in body:
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = body.partition(b"\r\n\r\n")[2]
        while len(body) < len(data):
            body += sock.recv(1 << 16)
        got.append(body)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        sock.close()

    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        reinet = Path(sys.executable).with_name("reinet")
        done = subprocess.run(
            [str(reinet), "run", "--law", "fixed:4", "--always", "--", "curl", "-s", "-f", "-T", "-",
             f"http://127.0.0.1:{listener.getsockname()[1]}/x", "-H", f"Content-Length: {len(data)}",
             "-H", "Transfer-Encoding:"],
            input=data, timeout=120, check=False,
        )  # fmt: skip
        thread.join(60)
    assert done.returncode == 0
    assert got == [data]
