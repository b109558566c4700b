"""The ends of a flow over UDP say what a link's own sender and receiver say; and UDP that goes on and off."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from reinet.core.errors import LinkError
from reinet.envs.mahimahi import bursts
from reinet.envs.mahimahi.process import require_open_to_all

ENDS = [sys.executable, "-m", "reinet.envs.mahimahi.udp_ends"]


def test_the_receiver_speaks_first_and_the_sender_sends_until_it_is_told_to_end() -> None:
    with subprocess.Popen([*ENDS, "send", "copa"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stdin is not None
        listening = json.loads(sender.stdout.readline())
        assert listening["event"] == "listening"
        environment = {**os.environ, "MAHIMAHI_BASE": "127.0.0.1"}
        with subprocess.Popen([*ENDS, "receive", str(listening["port"])], env=environment) as receiver:
            flow, sending = (json.loads(sender.stdout.readline()) for _ in range(2))
            assert (flow["event"], flow["cc"], sending["event"]) == ("flow", "copa", "sending")
            time.sleep(0.3)
            sender.stdin.close()
            closed, end = (json.loads(sender.stdout.readline()) for _ in range(2))
            receiver.kill()
    assert closed["event"] == "closed"
    assert 0 < closed["acked_bytes"] <= closed["sent_bytes"]
    assert end["event"] == "end"
    assert end["time_ns"] > sending["time_ns"]
    assert end["cpu_us"] > 0


@pytest.mark.parametrize(("folder_mode", "file_mode", "open_to_all"), [
    (0o700, 0o644, False), (0o755, 0o640, False), (0o755, 0o644, True),
])  # fmt: skip
def test_a_python_that_the_links_user_cannot_read_is_named_before_anything_starts(
    folder_mode: int, file_mode: int, open_to_all: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others
        home = Path(folder)
        python = home / "python"
        python.write_text("")
        python.chmod(file_mode)
        home.chmod(folder_mode)
        with nullcontext() if open_to_all else pytest.raises(LinkError, match=f"cannot read {python}"):
            require_open_to_all(python)


def test_what_a_burst_sends_arrives_and_is_counted() -> None:
    command = [sys.executable, "-m", "reinet.envs.mahimahi.bursts"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "receive", "127.0.0.1"], **pipes) as receiver:
        assert receiver.stdout is not None
        assert json.loads(receiver.stdout.readline()) == {"event": "began"}
        with subprocess.Popen([*command, "send", "127.0.0.1"], **pipes) as sender:
            assert sender.stdout is not None
            assert json.loads(sender.stdout.readline()) == {"event": "began"}
            time.sleep(0.5)
            sent = json.loads(sender.communicate(timeout=60)[0])
        time.sleep(0.2)
        got = json.loads(receiver.communicate(timeout=60)[0])
    assert sent["event"] == got["event"] == "bursts"
    assert 0 < got["bytes"] <= sent["bytes"]
    assert got["bytes"] % bursts.DATAGRAM_BYTES == 0
