"""Servers that confine themselves, change their user or send over several connections, under ``reinet run``."""

import contextlib
import ftplib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.gated import CAP_PKTS, TIMEOUT_S
from helpers.gated.server import MSS_BYTES, pattern
from helpers.gated.web import digest, free_port, needed, nginx
from reinet.alcc.sums import Sums

REINET = Path(sys.executable).with_name("reinet")
MOST_HELD_BYTES = 3 * CAP_PKTS * MSS_BYTES
"""What the cap and the peer's small buffer hold together; without a gate it is 80 KB and more."""
SIZES = (0, 1, 1000, 30_000_000)
CONFIG = """
listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=YES
no_anon_password=YES
anon_root={root}
secure_chroot_dir={empty}
connect_from_port_20=NO
ftp_username={user}
xferlog_enable=NO
{more}
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="vsftpd changes its user: run the test as root")


@contextlib.contextmanager
def _vsftpd(folder: Path, more: str) -> Iterator[int]:
    """Serves files of SIZES, named by them, to anybody, under a cap of CAP_PKTS; yields the port."""
    root, empty, port = folder / "root", folder / "empty", free_port()
    root.mkdir(mode=0o555)
    empty.mkdir(mode=0o555)
    for size in SIZES:
        (root / str(size)).write_bytes(pattern(size))
    for path in (folder, *folder.parents[:3]):  # pytest's folders are nobody else's
        path.chmod(path.stat().st_mode | 0o055)
    (folder / "conf").write_text(CONFIG.format(port=port, root=root, empty=empty, user="ftp", more=more))
    command = [str(REINET), "run", "--law", f"fixed:{CAP_PKTS}", "--always", "--json", str(folder / "json")]
    with subprocess.Popen([*command, "--", needed("vsftpd", "--servers"), str(folder / "conf")]) as process:
        try:
            yield port
        finally:
            process.terminate()


def _login(port: int) -> ftplib.FTP:
    ends_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            client = ftplib.FTP(timeout=TIMEOUT_S)
            client.connect("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.1)
    client.login()
    client.voidcmd("TYPE I")
    return client


def _fetched(client: ftplib.FTP, size: int) -> str:
    got = hashlib.sha256()
    client.retrbinary(f"RETR {size}", got.update, blocksize=1 << 18)
    return got.hexdigest()


def _held_bytes(client: ftplib.FTP, size: int) -> int:
    """Returns what the kernel holds of a file whose client has read nothing for a second; the file is then left."""
    host, port = client.makepasv()
    with socket.socket() as data:
        data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        data.connect((host, port))
        client.sendcmd(f"RETR {size}")
        time.sleep(1)
        ends = f"0100007F:{port:04X} 0100007F:{data.getsockname()[1]:04X}"
        (line,) = (line for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line)
        return int(line.split()[4].partition(":")[0], 16)  # tx_queue


@needs_root
@pytest.mark.parametrize("more", ["", "isolate=NO\nisolate_network=NO"], ids=["as it comes", "not isolated"])
def test_vsftpd_is_gated_and_serves_every_byte(tmp_path: Path, more: str) -> None:
    """Without seccomp_sandbox, with which vsftpd 3.0.3 answers nobody on Linux 6.18, gate or not."""
    with _vsftpd(tmp_path, more) as port:
        with contextlib.closing(_login(port)) as client:
            assert [_fetched(client, size) for size in SIZES] == [digest(pattern(size)) for size in SIZES]
        with contextlib.closing(_login(port)) as client:
            assert _held_bytes(client, SIZES[-1]) <= MOST_HELD_BYTES
    report = json.loads((tmp_path / "json").read_text())  # its sessions end by a signal, as another user in a chroot
    assert report["bytes"] >= sum(SIZES)


def test_nginx_serves_a_gigabyte(tmp_path: Path) -> None:
    report, block, blocks = Sums(), pattern(1_000_003), 1000
    with nginx(tmp_path, {"small": b"x"}, report) as (process, port):
        sent, got = hashlib.sha256(), hashlib.sha256()
        with (tmp_path / "www" / "large").open("wb") as file:
            for _ in range(blocks):
                file.write(block)
                sent.update(block)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/large", timeout=TIMEOUT_S) as answer:
            while some := answer.read(1 << 20):
                got.update(some)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(60) == 0
    (tmp_path / "www" / "large").unlink()  # pytest keeps the folders of its last runs
    assert got.digest() == sent.digest()
    assert report.total()["openings"] > 0


def test_iperf3_sends_backwards_over_four_streams(tmp_path: Path) -> None:
    program, port, size = needed("iperf3", "--servers"), free_port(), 20_000_000
    server = [str(REINET), "run", "--law", f"fixed:{CAP_PKTS}", "--always", "--json", str(tmp_path / "json"), "--"]
    with subprocess.Popen([*server, program, "-s", "-1", "-p", str(port)], stdout=subprocess.DEVNULL) as process:
        for _ in range(200):
            client = subprocess.run(
                [program, "-c", "127.0.0.1", "-p", str(port), "-R", "-P", "4", "-n", str(size), "-M", str(MSS_BYTES),
                 "-J"],
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            told = json.loads(client.stdout)
            if "unable to connect" not in told.get("error", ""):
                break
            time.sleep(0.1)
        assert process.wait(TIMEOUT_S) == 0
    assert client.returncode == 0, told
    assert told["end"]["sum_received"]["bytes"] >= size
    report = json.loads((tmp_path / "json").read_text())
    assert report["flows"] >= 4
    assert report["closings"] > 0  # few on a busy host, where loopback's ACKs come before the next write
