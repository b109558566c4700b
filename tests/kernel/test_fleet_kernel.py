"""Training as a service beside live kernel sockets: the README's five commands, and a daemon at work that follows."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from helpers.documents import blocks
from helpers.figures import figures_hold
from helpers.flows import settled
from helpers.places import ROOT
from helpers.trainer import put_model
from helpers.waiting import wait_for
from reinet.agents.service.client import Client
from reinet.daemon.client import ControlClient
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import own_cgroup
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate
from reinet.kshim.probe import cgroup2_mount

pytestmark = [pytest.mark.kernel, pytest.mark.mahimahi]

MBPS, MRTT_MS = 12.0, 20
FULL_MS = 100.0
"""A queue of 150 KB takes so long to leave at that rate; where no cap acts Cubic fills it within two seconds."""
FLOWS = 2
DEADLINE_S = 60.0
SERVE = """
import sys
from pathlib import Path
from reinet.agents.decide import swap
swap.SHARE = 1.0  # all flows at once: of two, none may be among the tenth that a new model gets first
from reinet.cli.serve import serve
serve(Path(sys.argv[1]))
"""


Followed = tuple[list[LinkRun], int, set[int], list[dict[int, int]]]
"""The links' runs, when all flows had a cap, what flows there are, and what the daemon said of them again and again."""
SUITE = """
title = "One link"
about = "What a gate of seconds measures."
seed = 1
[[scenario]]
name = "cellular"
about = "One link."
agents = ["none", "checkpoints/default"]
cc = ["cubic"]
repeat = 1
seconds = 6
"""


class Seen:
    """What the daemon says of its flows every 50 ms, from when all of them had a cap."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.samples: list[dict[int, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        with ControlClient(self.socket) as client:
            while not self._over.wait(0.05):
                self.samples.append({flow.cookie: flow.cap_pkts for flow in client.flows().flows})

    def __enter__(self) -> "Seen":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def running(command: list[str], folder: Path, called: str) -> Iterator[None]:
    """Runs a program that serves until it is told to end."""
    log = folder / called
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def five_commands() -> list[str]:
    (block,) = [one for one in blocks(ROOT / "README.md") if "reinet trainer" in one.text]
    return block.lines


def prepared(folder: Path) -> str:
    """The reader's recordings, a service's configuration and a training's, small; production is the shipped model."""
    (folder / "my-traces").mkdir()
    for seed in range(1, 5):
        generate("lte-driving", 6, seed).save(folder / "my-traces" / f"{seed}.trace")
    (folder / "held-out").mkdir()
    generate("lte-driving", 6, 5).save(folder / "held-out" / "5.trace")
    (folder / "configs").mkdir()
    small = {"updates": "2", "hidden": "[8]", "links": "2\nworkers = 0", "iterations": "5"}
    text = (ROOT / "configs" / "default.toml").read_text()
    for key, value in small.items():
        text = re.sub(rf"^{key} = .*", f"{key} = {value}", text, flags=re.MULTILINE)
    (folder / "configs" / "default.toml").write_text(text)
    (folder / "suite.toml").write_text(SUITE)
    held_out = f'"suite.toml"\ntraces = ["{folder}/held-out"]'
    text = (ROOT / "configs" / "trainer.toml").read_text()
    # A training of seconds is no better than the shipped model: the gate measures and lets it through all the same.
    own = {"folder": f'"{folder}/state"\nsocket = "{folder}/trainer.sock"', "runner": '"process"',
           "suite": held_out, "least_throughput": "0.01", "most_delay": "100.0"}  # fmt: skip
    for key, value in own.items():
        text = re.sub(rf"^{key} = .*", f"{key} = {value}", text, flags=re.MULTILINE)
    (folder / "configs" / "trainer.toml").write_text(text)
    return put_model(folder / "state", ROOT / "checkpoints" / "default", "production")


def test_a_running_daemon_follows_the_five_commands_of_the_readme_and_loses_no_flow_and_no_cap(folder: Path) -> None:
    """While two real flows go on, a model is trained, promoted, taken up by their daemon, and rolled back."""
    attempt = 0

    def followed() -> Followed:
        nonlocal attempt
        attempt += 1
        (own := folder / str(attempt)).mkdir(mode=0o755)
        shipped = prepared(own)
        start, *others = five_commands()
        address = f"unix:{own}/trainer.sock"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        mount = cgroup2_mount()
        assert mount is not None
        cgroups = [own_cgroup(mount) for _ in range(FLOWS)]
        (own / "daemon.toml").write_text(
            f'[daemon]\nmodel = "registry:production"\ncgroups = {json.dumps([str(one) for one in cgroups])}\n'
            f'socket = "{own}/run/control.sock"\n'
            f'registry = {{ address = "{address}", folder = "{own}/models", called = "host-1" }}\n'
        )

        def cli(line: str) -> str:
            done = subprocess.run(
                ["bash", "-c", line], cwd=own, capture_output=True, text=True, timeout=600, check=False,
                env={**os.environ, "REINET_TRAINER": address, "PATH": path},
            )  # fmt: skip
            assert done.returncode == 0, (line, done.stderr)
            return done.stdout

        with ExitStack() as stack:
            words = [str(Path(sys.executable).with_name("reinet")), *start.split()[1:]]
            stack.enter_context(running(words, own, "trainer.log"))
            links = [stack.enter_context(MahimahiLink(LinkSpec(Trace.constant(MBPS, 1), mrtt_ms=MRTT_MS,
                                                               buffer_bytes=150_000), cgroup=cgroup))
                     for cgroup in cgroups]  # fmt: skip
            client = stack.enter_context(Client(address))
            wait_for(lambda: (own / "trainer.sock").exists())
            stack.enter_context(running([sys.executable, "-c", SERVE, "daemon.toml"], own, "daemon.log"))
            socket = own / "run" / "control.sock"
            assert settled(socket.exists, DEADLINE_S), (own / "daemon.log").read_text()
            cookies = {flow.cookie for link in links for flow in link.start()}

            def all_capped() -> bool:
                with ControlClient(socket) as control:
                    flows = control.flows().flows
                return {flow.cookie for flow in flows} == cookies and all(flow.cap_pkts for flow in flows)

            def runs(model: str) -> bool:
                return [(one["daemon"], one["model"]) for one in client.fleet()] == [("host-1", model)]

            assert settled(all_capped, DEADLINE_S)
            assert settled(lambda: runs(shipped), DEADLINE_S)
            capped_ns = time.monotonic_ns()
            with Seen(socket) as seen:
                for line in others:
                    cli(line)
                trained = client.model("production")["sha256"]
                assert trained != shipped
                assert settled(lambda: runs(trained), DEADLINE_S)
                time.sleep(2)
                cli('reinet models rollback --why "only a test"')
                assert settled(lambda: runs(shipped), DEADLINE_S)
                time.sleep(2)
            done = [link.stop() for link in links]
        swaps = [json.loads(line) for line in (own / "daemon.log").read_text().splitlines() if "swapped to" in line]
        assert [Path(swap["model"]).name for swap in swaps] == [trained, shipped]
        return done, capped_ns, cookies, seen.samples

    def check(done: Followed) -> None:
        runs, capped_ns, cookies, samples = done
        assert len(samples) > 50
        lost = [(n, sorted(sample)) for n, sample in enumerate(samples) if set(sample) != cookies]
        assert not lost, f"a flow was lost, or began anew, at {len(lost)} of {len(samples)} looks: {lost[:5]}"
        bare = [(n, sample) for n, sample in enumerate(samples) if not all(sample.values())]
        assert not bare, f"a flow was without a cap at {len(bare)} of {len(samples)} looks: {bare[:5]}"
        for run in runs:
            late = run.log.departure_ms > (capped_ns - run.zero_ns) / 1e6 + 1000
            delays_ms = run.log.departure_delay_ms[late & (run.log.departure_ms < run.end_ms)]
            assert delays_ms.max() < 0.8 * FULL_MS, "a cap was not in force in the kernel"

    figures_hold(followed, check, lambda done: [run.invalid_reason for run in done[0] if run.invalid_reason])
