"""The ends of a flow over UDP say what a link's own sender and receiver say."""

import json
import os
import subprocess
import sys
import time

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
