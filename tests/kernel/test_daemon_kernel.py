"""The daemon beside live kernel sockets on an emulated link: killed, paused, through an outage, gone without trace."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.figures import figures_hold
from helpers.flows import settled
from helpers.places import our_mounts
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.loop import ControlLoop
from reinet.cli import ctl
from reinet.core.errors import DaemonError
from reinet.core.records import Flag, FlowStatsArray
from reinet.core.target import Target
from reinet.daemon.client import ControlClient
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import own_cgroup
from reinet.envs.trace import Trace
from reinet.kshim.kernel import KernelShim
from reinet.kshim.leftovers import leftovers, loaded
from reinet.kshim.probe import cgroup2_mount, why_not_capped

pytestmark = [pytest.mark.kernel, pytest.mark.mahimahi]

MBPS = 12.0
CAP_PKTS = 25
"""On 12 Mbit/s and 20 ms the path holds 20 packets, so 5 wait for 5 ms; plain Cubic fills a queue of 100."""
TARGET_MS = 50.0
DEADLINE_S = 30.0
SHARED = ("reinet_slots", "reinet_caps", "reinet_counters", "reinet_records")
"""What the decision process is handed."""


@pytest.fixture
def cgroup() -> Path:
    """Where the link will make its sender's cgroup."""
    mount = cgroup2_mount()
    assert mount is not None
    return own_cgroup(mount)


def link_with(trace: Trace, cgroup: Path, bytes_per_flow: int | None = None) -> MahimahiLink:
    return MahimahiLink(LinkSpec(trace, mrtt_ms=20, buffer_bytes=150_000), cgroup=cgroup, bytes_per_flow=bytes_per_flow)


@contextmanager
def running_daemon(folder: Path, cgroup: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Runs ``reinet serve`` with a fixed cap, from when it answers."""
    socket = folder / "run" / "control.sock"
    config = folder / "daemon.toml"
    config.write_text(
        f'[daemon]\nmodel = "fixed:{CAP_PKTS}"\ncgroups = ["{cgroup}"]\nsocket = "{socket}"\ntarget_ms = {TARGET_MS}\n'
    )
    command = f"from pathlib import Path\nfrom reinet.cli.serve import serve\nserve(Path({str(config)!r}))"
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-c", command], stderr=log)
    try:
        end_s = time.monotonic() + DEADLINE_S
        while not answers(socket):
            if daemon.poll() is not None or time.monotonic() > end_s:
                pytest.fail((folder / "daemon.log").read_text())
            time.sleep(0.05)
        yield daemon, socket
    finally:
        daemon.kill()
        daemon.wait()


def answers(socket: Path) -> bool:
    """Whether a daemon listens at this socket; the file is there a moment before."""
    with suppress(DaemonError), ControlClient(socket):
        return True
    return False


def flow_of(socket: Path) -> dict[str, object]:
    with ControlClient(socket) as client:
        (flow,) = client.flows().flows
        return {"cap_pkts": flow.cap_pkts, "reason": flow.reason, "cookie": flow.cookie}


def caps_of(socket: Path) -> list[int]:
    with ControlClient(socket) as client:
        return [flow.cap_pkts for flow in client.flows().flows]


def wait_for_cap(socket: Path, cap_pkts: int) -> None:
    """Returns once the only flow has this cap, and had it for the second that delays are then measured over."""
    assert settled(lambda: caps_of(socket) == [cap_pkts], DEADLINE_S), caps_of(socket)
    time.sleep(1.5)


def host_state(folder: Path) -> dict[str, object]:
    """What the daemon could have changed on the host and must not have; what it loads is looked at by id."""
    sysctls = {}
    for path in Path("/proc/sys/net").rglob("*"):
        # Other tests may be loading wrappers of their own at this time.
        if path.is_file() and os.access(path, os.R_OK) and path.name != "tcp_available_congestion_control":
            with suppress(OSError):
                sysctls[str(path)] = path.read_text()
    mount = cgroup2_mount()
    assert mount is not None
    return {
        "sysctls": sysctls,
        "iptables": subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout.count("\n-A"),
        "cgroups": sorted(str(path) for path in mount.glob(f"**/*{os.getpid()}*")),
        "mounts": our_mounts(),
        "sockets": Path("/proc/net/unix").read_text().count(str(folder)),
    }


def loaded_by(pid: int) -> set[tuple[str, int]]:
    """Kind and id of the BPF programs and maps that a process holds."""
    return {(item.kind, item.id) for item in loaded() if pid in item.pids}


def wait_unloaded(ids: set[tuple[str, int]]) -> None:
    """The kernel frees programs and maps a grace period after their last use."""
    end_s = time.monotonic() + DEADLINE_S
    while left := ids & {(item.kind, item.id) for item in loaded()}:
        assert time.monotonic() < end_s, f"still loaded: {left}"
        time.sleep(0.05)


def delays_ms(run: LinkRun, start_ms: float, end_ms: float) -> np.ndarray:
    departure_ms = run.log.departure_ms
    return run.log.departure_delay_ms[(departure_ms >= start_ms) & (departure_ms < end_ms)]


def hold_figures(measure: Callable[[], tuple[LinkRun, ...]], check: Callable[..., None]) -> None:
    """Figures of a run and its marks in milliseconds, which a host that lagged does not refute."""
    figures_hold(measure, lambda done: check(*done), lambda done: done[0].invalid_reason)


@pytest.mark.alone
def test_kill_9_lifts_the_cap_and_harms_no_transfer(folder: Path, cgroup: Path) -> None:
    def killed() -> tuple[LinkRun, float]:
        before = host_state(folder)
        with (
            link_with(Trace.constant(MBPS, 1), cgroup, bytes_per_flow=12_000_000) as link,
            running_daemon(folder, cgroup) as (daemon, socket),
        ):
            (flow,) = link.start()
            wait_for_cap(socket, CAP_PKTS)
            assert flow_of(socket) == {"cap_pkts": CAP_PKTS, "reason": "", "cookie": flow.cookie}
            ids = loaded_by(daemon.pid)
            assert len(ids) > 2
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
            killed_ns = time.monotonic_ns()
            link.wait_finished(DEADLINE_S)
            run = link.stop()
        (sent,) = run.closed
        (received,) = run.received
        assert sent["finished"]
        assert sent["acked_bytes"] >= 12_000_000
        assert (received["bytes"], received["intact"], received["clean"]) == (12_000_000, True, True)
        wait_unloaded(ids)  # nothing was pinned: the wrapper went with its last socket
        assert host_state(folder) == before
        return run, (killed_ns - run.zero_ns) / 1e6

    def check(run: LinkRun, killed_ms: float) -> None:
        capped_ms = delays_ms(run, killed_ms - 1500, killed_ms)
        freed_ms = delays_ms(run, killed_ms + 1000, killed_ms + 3000)
        assert np.median(capped_ms) < 10
        assert np.median(freed_ms) > 3 * np.median(capped_ms) + 10  # the kernel's own window, which a cap forbids
        late = run.log.departure_ms >= killed_ms + 1000
        late_ms = run.log.departure_ms[late][-1] - (killed_ms + 1000)
        assert run.log.departure_bytes[late].sum() * 8 / 1e3 / late_ms > 0.9 * MBPS

    hold_figures(killed, check)


@pytest.mark.parametrize("cc", ["reno", "bbr"])
def test_flows_of_other_congestion_controls_are_capped_too(folder: Path, cgroup: Path, cc: str) -> None:
    if reason := why_not_capped(cc):
        pytest.skip(reason)

    def capped() -> tuple[LinkRun]:
        with (
            MahimahiLink(LinkSpec(Trace.constant(MBPS, 1), cc=cc), cgroup=cgroup) as link,
            running_daemon(folder, cgroup) as (_, socket),
        ):
            (flow,) = link.start()
            wait_for_cap(socket, CAP_PKTS)
            time.sleep(1)
            assert flow_of(socket) == {"cap_pkts": CAP_PKTS, "reason": "", "cookie": flow.cookie}
            run = link.stop()
        assert flow.cc.startswith(f"reinet_{cc}")
        return (run,)

    def check(run: LinkRun) -> None:
        assert np.median(delays_ms(run, run.start_ms + 1000, run.end_ms)) < 10

    hold_figures(capped, check)


class Recorder:
    """Keeps what the loop saw; cap_pkts in a record is the cap that was in force in the kernel."""

    def __init__(self) -> None:
        self.records: list[FlowStatsArray] = []

    def offer(self, records: FlowStatsArray, caps_pkts: np.ndarray) -> None:
        self.records.append(records.copy())

    def all(self) -> FlowStatsArray:
        return np.concatenate(self.records)


def test_an_outage_of_three_seconds_does_not_lift_the_cap(cgroup: Path) -> None:
    busy_ms = np.arange(1, 3001, dtype=np.uint32)  # 12 Mbit/s
    trace = Trace(np.concatenate([busy_ms, busy_ms + 6000]), "outage")  # nothing from 3 s to 6 s

    def through() -> tuple[LinkRun, FlowStatsArray]:
        recorder, stop = Recorder(), threading.Event()
        with link_with(trace, cgroup) as link, KernelShim([cgroup]) as shim:
            loop = ControlLoop(shim, FixedCap(CAP_PKTS), Target.parse(TARGET_MS), sink=recorder)
            worker = threading.Thread(target=loop.run, args=(stop,))
            worker.start()
            try:
                link.start()
                time.sleep(8)
                assert loop.status().ok
            finally:
                stop.set()
                worker.join()
            return link.stop(), recorder.all()

    def check(run: LinkRun, records: FlowStatsArray) -> None:
        log_ms = (records["time_ns"].astype(np.int64) - run.zero_ns) / 1e6
        gap_at = int(np.diff(run.log.opportunity_ms).argmax())
        gap_start_ms, gap_end_ms = run.log.opportunity_ms[gap_at], run.log.opportunity_ms[gap_at + 1]
        assert gap_end_ms - gap_start_ms > 2900
        silent = records[(log_ms > gap_start_ms + 300) & (log_ms < gap_end_ms)]
        assert len(silent) >= 8
        assert ((silent["flags"] & Flag.NO_SAMPLE) != 0).all()
        assert (silent["cap_pkts"] == CAP_PKTS).all()
        later = records[(log_ms > gap_end_ms + 100) & ((records["flags"] & Flag.NO_SAMPLE) == 0)]
        assert len(later) > 10
        assert (later["cap_pkts"] == CAP_PKTS).all()
        recovered = later[(later["flags"] & Flag.IN_RECOVERY) == 0]  # until then PRR owns the window
        assert recovered.size
        assert recovered["cwnd_pkts"].max() <= CAP_PKTS
        assert np.quantile(delays_ms(run, gap_end_ms + 500, run.end_ms), 0.95) < 15

    hold_figures(through, check)


@pytest.mark.alone
def test_pause_resume_and_a_normal_end_on_a_live_flow(folder: Path, cgroup: Path) -> None:
    def paused_and_ended() -> tuple[LinkRun, list[float]]:
        before = host_state(folder)
        with (
            link_with(Trace.constant(MBPS, 1), cgroup) as link,
            running_daemon(folder, cgroup) as (daemon, socket),
        ):
            link.start()
            marks_ns = []
            wait_for_cap(socket, CAP_PKTS)
            with ControlClient(socket) as client:
                marks_ns.append(time.monotonic_ns())
                assert client.pause().released == 1
                time.sleep(2)
                assert flow_of(socket)["cap_pkts"] == 0
                client.resume()
                marks_ns.append(time.monotonic_ns())
                wait_for_cap(socket, CAP_PKTS)
                time.sleep(1)
                assert flow_of(socket)["cap_pkts"] == CAP_PKTS
            ids = loaded_by(daemon.pid)
            assert len(ids) > 2
            marks_ns.append(time.monotonic_ns())
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(DEADLINE_S) == 0
            time.sleep(2.5)
            run = link.stop()
        wait_unloaded(ids)
        assert host_state(folder) == before
        log = [json.loads(line) for line in (folder / "daemon.log").read_text().splitlines()]
        assert [entry["event"] for entry in log] == ["serving", "paused", "resumed", "stopping", "stopped"]
        assert not socket.parent.exists()
        return run, [(mark_ns - run.zero_ns) / 1e6 for mark_ns in marks_ns]

    def check(run: LinkRun, marks_ms: list[float]) -> None:
        paused_ms, resumed_ms, ended_ms = marks_ms
        assert np.median(delays_ms(run, paused_ms - 1000, paused_ms)) < 10
        assert np.median(delays_ms(run, paused_ms + 1000, resumed_ms)) > 30
        assert np.median(delays_ms(run, resumed_ms + 1000, ended_ms)) < 10
        assert np.median(delays_ms(run, ended_ms + 1500, run.end_ms)) > 30

    hold_figures(paused_and_ended, check)


def test_a_target_below_the_path_leaves_the_flow_to_the_kernel(cgroup: Path) -> None:
    recorder, stop = Recorder(), threading.Event()
    with link_with(Trace.constant(MBPS, 1), cgroup) as link, KernelShim([cgroup]) as shim:
        loop = ControlLoop(shim, FixedCap(CAP_PKTS), Target.parse("20ms"), sink=recorder)
        worker = threading.Thread(target=loop.run, args=(stop,))
        worker.start()
        try:
            link.start()
            assert settled(lambda: any(loop.snapshot().reasons), DEADLINE_S)
            time.sleep(1)
            (reason,) = loop.snapshot().reasons
        finally:
            stop.set()
            worker.join()
    assert reason.startswith("target 20.0 ms is below 1.1 x the path's minimum RTT (2")
    records = recorder.all()
    assert len(records) > 10
    assert (records["cap_pkts"] == 0).all()


def test_a_relative_target_reaches_the_records_of_a_live_flow(cgroup: Path) -> None:
    recorder, stop = Recorder(), threading.Event()
    with link_with(Trace.constant(MBPS, 1), cgroup) as link, KernelShim([cgroup], target_us=77_000) as shim:
        loop = ControlLoop(shim, FixedCap(CAP_PKTS), Target.parse("+30ms"), sink=recorder)
        worker = threading.Thread(target=loop.run, args=(stop,))
        worker.start()
        try:
            link.start()
            assert settled(lambda: loop.snapshot().caps_pkts.any(), DEADLINE_S)
            time.sleep(1)
            (seen,) = loop.snapshot().stats
        finally:
            stop.set()
            worker.join()
        in_kernel = shim.poll(1000)  # as the kernel itself tells it, with what the loop wrote there
    records = recorder.all()
    assert len(records) > 20
    assert (records["target_us"] == records["min_rtt_us"] + 30_000).all()
    assert (records["cap_pkts"] == CAP_PKTS).any()
    assert seen["target_us"] == seen["min_rtt_us"] + 30_000
    assert len(in_kernel)
    assert set(in_kernel["target_us"]) <= set(records["target_us"])


@pytest.mark.alone
def test_what_a_killed_daemon_leaves_is_listed_and_removed(folder: Path, cgroup: Path) -> None:
    with (
        link_with(Trace.constant(MBPS, 1), cgroup) as link,
        running_daemon(folder, cgroup) as (daemon, socket),
    ):
        link.start()
        wait_for_cap(socket, CAP_PKTS)
        ids = loaded_by(daemon.pid)
        daemon.kill()
        daemon.wait()
        time.sleep(1)
        left = {(item.kind, item.id) for item in leftovers()} & ids
        assert left  # the open socket still runs the wrapper, without a cap
        result = CliRunner().invoke(ctl.app, ["detach", "--socket", str(socket), "--json", "-"])
        assert result.exit_code == 0, result.output
        wait_unloaded(ids)  # while the transfer goes on
        link.check()
        removed = json.loads(result.stdout)
        assert left <= {(row["kind"], row["id"]) for row in removed["rows"] if row["removed"]}
        assert removed["socket_removed"]
        assert not socket.exists()
        run = link.stop()
    assert run.closed[0]["acked_bytes"] > 0
    if run.invalid_reason is None:  # how fast it went says nothing where the host lagged
        assert run.metrics.throughput_mbps > 0.9 * MBPS


def test_a_decision_process_that_dies_lifts_the_caps_and_gets_them_back(folder: Path, cgroup: Path) -> None:
    """On the programs that are loaded, by memory that is handed over again; no connection is lost."""
    with (
        link_with(Trace.constant(MBPS, 1), cgroup) as link,
        running_daemon(folder, cgroup) as (daemon, socket),
    ):
        (flow,) = link.start()
        wait_for_cap(socket, CAP_PKTS)
        ids = loaded_by(daemon.pid)
        deciding = min(int(pid) for pid in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split())
        assert not {name for kind, name in names_of(deciding) if kind == "prog"}  # memory only
        assert {name for _, name in names_of(deciding)} == set(SHARED)
        mapped = bpf_memory_of(deciding)
        os.kill(deciding, signal.SIGKILL)

        def capped_anew() -> bool:
            with suppress(DaemonError):
                return caps_of(socket) == [CAP_PKTS] and flow_of(socket)["cookie"] == flow.cookie
            return False

        assert settled(lambda: not Path(f"/proc/{deciding}").exists(), DEADLINE_S)
        assert settled(capped_anew, DEADLINE_S), (folder / "daemon.log").read_text()
        assert loaded_by(daemon.pid) == ids  # nothing was loaded twice
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        anew, answering = sorted(map(int, children))
        assert {name for _, name in names_of(anew)} == set(SHARED)  # and so does who is started anew
        assert names_of(answering) == set()
        assert (bpf_memory_of(anew), bpf_memory_of(answering)) == (mapped, [])  # none of the loader's own
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0
        link.check()
        run = link.stop()
    assert run.closed[0]["acked_bytes"] > 0
    log = [json.loads(line)["event"] for line in (folder / "daemon.log").read_text().splitlines()]
    assert log == ["serving", "starting anew", "stopping", "stopped"]


def names_of(pid: int) -> set[tuple[str, str]]:
    """Kind and name of the BPF programs and maps that a process holds."""
    return {(item.kind, item.name) for item in loaded() if pid in item.pids}


def bpf_memory_of(pid: int) -> list[str]:
    """How a process may use each piece of memory of BPF maps that it has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted(line.split()[1] for line in lines if line.endswith("bpf-map"))
