"""nginx under the gate: workers, edge-triggered epoll, sendfile, a reload under load."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.gated import settings
from helpers.gated.server import MSS_BYTES, pattern

SIZES = (1, 1000, MSS_BYTES * 8, 100_000, 3_000_000)

CONFIG = """
{user}
worker_processes 2;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; use epoll; }}
http {{
  access_log off;
  sendfile {sendfile};
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _fetch(port: int, size: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{size}", timeout=60) as answer:
        return hashlib.sha256(answer.read()).hexdigest()


@pytest.mark.parametrize("sendfile", ["on", "off"])
def test_nginx_serves_every_byte_also_while_it_reloads(sendfile: str, tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if nginx is None:
        pytest.skip("nginx is not installed: run docker/packages.sh --bench as root")
    www = tmp_path / "www"
    www.mkdir()
    for size in SIZES:
        (www / str(size)).write_bytes(pattern(size))
    port, report = _free_port(), tmp_path / "report"
    user = "user root;" if os.geteuid() == 0 else ""  # workers of another user cannot read pytest's folders
    (tmp_path / "conf").write_text(CONFIG.format(folder=tmp_path, port=port, sendfile=sendfile, user=user))
    asked = settings("fixed:4", report=report)
    with subprocess.Popen(
        [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "conf")], env=asked.environment()
    ) as process:
        try:
            _wait_up(port)
            with ThreadPoolExecutor(16) as clients:
                jobs = [(size, clients.submit(_fetch, port, size)) for _ in range(8) for size in SIZES]
                process.send_signal(signal.SIGHUP)
                for size, job in jobs:
                    assert job.result() == hashlib.sha256(pattern(size)).hexdigest()
            process.send_signal(signal.SIGQUIT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert report.exists(), "no worker ended in order"
    assert (
        sum(int(line.partition('"openings": ')[2].partition(",")[0]) for line in report.read_text().splitlines()) > 10
    )
    assert "alert" not in (tmp_path / "error.log").read_text()


def _wait_up(port: int) -> None:
    for _ in range(200):
        try:
            _fetch(port, 1)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail("nginx did not come up")


def test_python_http_server_under_reinet_run(tmp_path: Path) -> None:
    data = pattern(2_000_003)
    (tmp_path / "file").write_bytes(data)
    port = _free_port()
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
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: run docker/packages.sh --bench as root")
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
