"""UDP that goes on and off: both ends as programs, over loopback."""

import json
import subprocess
import sys
import time

from reinet.envs.mahimahi import bursts


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
