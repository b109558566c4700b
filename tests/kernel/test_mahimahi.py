"""The Mahimahi link: log, validity, and that its cell leaves nothing on the host, whatever ends it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reinet.core.errors import LinkError
from reinet.envs.link.metrics import LinkLog, compute
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import MahimahiLink
from reinet.envs.mahimahi.log import parse_log
from reinet.envs.mahimahi.namespace import Cell, own_cgroup
from reinet.envs.mahimahi.validity import Sleeper, judge
from reinet.envs.trace import Trace
from reinet.kshim.probe import cgroup2_mount

HEADER = "# mahimahi mm-link (Downlink) [down] > log\n# init timestamp: 1000000\n# base timestamp: 40\n"
CALM = Sleeper(wakes=10_000, late_5ms=10, max_late_us=50_000)


def trace_of(*times_ms: int) -> Trace:
    return Trace(np.array(times_ms, dtype=np.uint32), "test")


def test_log_is_read_from_the_traces_start_and_an_unfinished_line_left_out() -> None:
    text = HEADER + "41 # 1504\n42 + 1504\n43 # 1504\n43 - 1504 1\n44 d 1 1504\n45 + 64\n46 - 15"
    log, zero_ms = parse_log(text)
    assert zero_ms == 1_000_040
    assert log.arrival_ms.tolist() == [2, 5]
    assert log.arrival_bytes.tolist() == [1504, 64]
    assert log.opportunity_ms.tolist() == [1, 3]
    assert log.departure_ms.tolist() == [3]
    assert log.departure_delay_ms.tolist() == [1]


@pytest.mark.parametrize("line", ["45 + many", "45 -", "x # 1504", "45 ? 1", "\x00\x01", "45 - 1504"])
def test_damaged_log_names_the_line(line: str) -> None:
    with pytest.raises(LinkError, match=r"link log:4: "):
        parse_log(f"{HEADER}{line}\n46 # 1504\n")


def test_log_without_header_is_refused() -> None:
    with pytest.raises(LinkError, match="no init or no base timestamp"):
        parse_log("45 # 1504\n")


def run_of(opportunity_ms: list[int], departure_ms: list[int]) -> LinkLog:
    return LinkLog(
        arrival_ms=np.array([0.0]),
        arrival_bytes=np.array([1504]),
        opportunity_ms=np.array(opportunity_ms, dtype=np.float64),
        departure_ms=np.array(departure_ms, dtype=np.float64),
        departure_bytes=np.full(len(departure_ms), 1504),
        departure_delay_ms=np.zeros(len(departure_ms)),
    )


EVERY_MS = list(range(1, 5000))


@pytest.mark.parametrize(
    ("sleeper", "opportunity_ms", "departure_ms", "reason"),
    [
        (CALM, EVERY_MS, EVERY_MS, None),
        (Sleeper(10_000, 11, 6_000), EVERY_MS, EVERY_MS, "host lagged: 11 of 10000"),
        (Sleeper(10_000, 1, 50_001), EVERY_MS, EVERY_MS, "host lagged: a one-millisecond sleep ended 50 ms late"),
        (CALM, EVERY_MS[:4899], EVERY_MS, "link lagged: 4899 of the trace's 4999"),
        (CALM, EVERY_MS[:4900], EVERY_MS, None),
        (CALM, EVERY_MS, EVERY_MS[:1000] + EVERY_MS[3000:], None),  # 2001 ms: the gap of 1 ms + 2 s
        (CALM, EVERY_MS, EVERY_MS[:1000] + EVERY_MS[3001:], "flow stalled: nothing left the link for 2002 ms"),
        (CALM, EVERY_MS, EVERY_MS[:2900], "flow stalled: nothing left the link for 2100 ms"),
    ],
)
def test_validity(sleeper: Sleeper, opportunity_ms: list[int], departure_ms: list[int], reason: str | None) -> None:
    log = run_of(opportunity_ms, departure_ms)
    found = judge(log, compute(log, 20, 5000), np.array([1]), 0, 5000, sleeper)
    assert found is None if reason is None else found is not None and reason in found


# From here on, real links.


def namespace_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def processes_in(namespace: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and namespace_of(int(entry.name)) == namespace:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def becomes(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return condition()


def host_state(tmp_path: Path) -> dict[str, object]:
    """What a link could change on the host and must not."""
    sysctls: dict[str, str] = {}
    for path in sorted(Path("/proc/sys/net/ipv4").rglob("*")):
        if path.name == "tcp_available_congestion_control":  # other shims come and go
            continue
        try:
            sysctls[str(path)] = path.read_text()
        except OSError:
            continue
    lock = {"XTABLES_LOCKFILE": str(tmp_path / "lock"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    rules = subprocess.run(["iptables-legacy-save"], env=lock, capture_output=True, text=True, check=False).stdout
    return {
        "sysctls": sysctls,
        "rules": [line for line in rules.splitlines() if not line.startswith("#")],
        "mounts": Path("/proc/self/mounts").read_text(),
        "devices": sorted(entry.name for entry in Path("/sys/class/net").iterdir()),
        "run": sorted(entry.name for entry in Path("/run").iterdir()),
    }


@pytest.mark.mahimahi
def test_plain_cubic_fills_the_buffer_and_the_host_stays_as_it_was(tmp_path: Path) -> None:
    before = host_state(tmp_path)
    with MahimahiLink(LinkSpec(Trace.constant(12, 1))) as link:
        (flow,) = link.start()
        assert flow.cc == "cubic"
        time.sleep(6)
        run = link.stop()
        namespace = namespace_of(link._cell.pid)
    assert 65 < run.metrics.qdelay_mean_ms < 90  # 77 ms measured: a sawtooth below 99.7 packets at 1 per ms
    assert run.metrics.qdelay_max_ms <= 101
    assert 11 < run.metrics.throughput_mbps < 12.1
    assert run.end_ms - run.start_ms == pytest.approx(6000, abs=200)
    assert run.log.opportunity_ms[0] == 1
    assert run.sleeper.wakes > 3000
    assert run.invalid_reason is None or "lagged" in run.invalid_reason
    assert processes_in(namespace) == []
    assert host_state(tmp_path) == before


@pytest.mark.mahimahi
def test_transfers_arrive_whole_and_a_second_start_is_another_link() -> None:
    with MahimahiLink(LinkSpec(Trace.constant(24, 1), mrtt_ms=0), flows=2, bytes_per_flow=1_000_000) as link:
        for mbps in (24, 6):
            link.start(LinkSpec(Trace.constant(mbps, 1), mrtt_ms=10 if mbps == 6 else 0))
            link.wait_finished(20)
            run = link.stop()
            assert [event["bytes"] for event in run.received] == [1_000_000] * 2
            assert all(event["intact"] and event["clean"] for event in run.received)
            assert all(event["finished"] and event["acked_bytes"] >= 1_000_000 for event in run.closed)
            assert run.metrics.capacity_mbps == pytest.approx(mbps, rel=0.05)


@pytest.mark.mahimahi
def test_a_flow_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with MahimahiLink(LinkSpec(Trace.constant(12, 1), cc="nonesuch")) as link:
        namespace = namespace_of(link._cell.pid)
        with pytest.raises(LinkError, match="congestion control nonesuch"):
            link.start()
    assert processes_in(namespace) == []


@pytest.mark.mahimahi
def test_a_link_that_dies_is_noticed() -> None:
    with MahimahiLink(LinkSpec(Trace.constant(12, 1))) as link:
        link.start()
        link.check()
        namespace = namespace_of(link._cell.pid)
        shells = [pid for pid in processes_in(namespace) if Path(f"/proc/{pid}/comm").read_text() == "mm-delay\n"]
        for pid in shells:
            os.kill(pid, signal.SIGKILL)

        def noticed() -> bool:
            try:
                link.check()
            except LinkError as error:
                return "Mahimahi ended" in str(error)
            return False

        assert becomes(noticed, 3)
    assert processes_in(namespace) == []


OWNER = """
    import sys, time
    from pathlib import Path
    from reinet.envs.mahimahi.link import MahimahiLink
    from reinet.envs.link.spec import LinkSpec
    from reinet.envs.trace import Trace
    with MahimahiLink(LinkSpec(Trace.constant(12, 1)), cgroup=Path(sys.argv[1])) as link:
        link.start()
        print(link._cell.pid, flush=True)
        time.sleep(60)
"""


@pytest.mark.mahimahi
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_link_ends_with_its_owner(how: signal.Signals) -> None:
    mount = cgroup2_mount()
    assert mount is not None
    cgroup = own_cgroup(mount)
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(cgroup)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    with owner.stdout:
        namespace = namespace_of(int(owner.stdout.readline()))
    assert len((cgroup / "cgroup.procs").read_text().split()) == 1
    assert len(processes_in(namespace)) > 2
    owner.send_signal(how)
    owner.wait(10)
    assert becomes(lambda: not processes_in(namespace), 2)
    assert becomes(lambda: not cgroup.exists(), 2)


@pytest.mark.mahimahi
def test_a_cell_ends_when_its_supervisor_is_killed() -> None:
    with Cell() as cell:
        namespace = namespace_of(cell.pid)
        cell.spawn(["sleep", "60"], "sleep", privileged=False)
        assert becomes(lambda: len(processes_in(namespace)) > 2, 2)
        cell._main.process.kill()
        assert becomes(lambda: not processes_in(namespace), 2)


@pytest.mark.mahimahi
def test_a_cgroup_whose_owner_and_supervisor_were_killed_is_removed_by_the_next() -> None:
    mount = cgroup2_mount()
    assert mount is not None
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale, own = mount / f"reinet-link-{gone.pid}-0", mount / f"reinet-link-{os.getpid()}-stays"
    try:
        stale.mkdir()
        own.mkdir()
        own_cgroup(mount)
        assert not stale.exists()
        assert own.exists()
    finally:
        for cgroup in (stale, own):
            if cgroup.exists():
                cgroup.rmdir()
