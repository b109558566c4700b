"""The gate of ``alcc/`` over an emulated cellular link, beside the cap in the kernel."""

import errno
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.figures import figures_hold
from helpers.flows import Transfer, running_loader
from helpers.gated import seen_in, settings
from helpers.gated.program import FLUSH, GETATTR, POLL, Program, own_file, record
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.ways import shim, tunnel
from reinet.alcc.joined import with_programs
from reinet.alcc.launch import Law, Settings
from reinet.alcc.processes import ProcessShim, listen
from reinet.alcc.sums import Sums
from reinet.core.period import PeriodConfig
from reinet.core.target import Target
from reinet.envs.link.metrics import Metrics, compute, first_data_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi import link
from reinet.envs.mahimahi.process import SYSTEM_PATH
from reinet.envs.mahimahi.tunnel import Beside
from reinet.envs.trace import Trace, generate
from reinet.kshim.kernel import KernelShim

SECONDS = 12.0


def _runs(trace: Trace, agents: list[tuple[str, str]], seconds: float = SECONDS, **path: Any) -> list[Run]:
    done = []
    for agent, actuator in agents:
        scenario = Scenario.of(trace, "mahimahi", seconds=seconds, actuator=actuator, **path)  # type: ignore[arg-type]
        done.append(run(make_agent(agent, link="mahimahi"), scenario))
    return done


def _after(seconds: float, done: Run) -> Metrics:
    """Returns the figures of a run but for its first seconds."""
    end_ms = first_data_ms(done.log) + done.metrics.interval_s * 1000
    return compute(done.log, done.scenario.path.mrtt_ms, end_ms, warmup_ms=seconds * 1000)


def _invalid(runs: list[Run]) -> list[str]:
    return [r.invalid_reason for r in runs if r.invalid_reason]


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_the_gate_keeps_up_with_the_kernels_cap_on_a_cellular_link() -> None:
    trace = generate("lte-driving", seconds=30, seed=2027)

    def measured() -> list[Run]:
        runs = _runs(trace, [("fixed:25", "app"), ("fixed:25", "kernel"), ("none", "kernel")])
        assert runs[0].caps_pkts.any(), "the gate never closed"
        return runs

    def check(runs: list[Run]) -> None:
        # A flow's first second is uncapped, and where slow start leaves it is another place each time.
        app, kernel, plain = (_after(2.0, r) for r in runs)
        assert app.throughput_mbps > 0.9 * kernel.throughput_mbps
        assert app.delay_mean_ms < 1.1 * kernel.delay_mean_ms + 2
        assert app.qdelay_mean_ms < 0.6 * plain.qdelay_mean_ms

    figures_hold(measured, check, _invalid)


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_a_cap_that_always_binds_has_the_throughput_of_the_kernels() -> None:
    """Throughput is the mean in flight over the round trip, so it shows what the gate misses between two looks.

    Over 12 Mbit/s and 20 ms, where the path holds 20 packets, a cap of 12 has 0.99 to 1.02 of the throughput that the
    kernel's has (fourteen runs each way, 8 s), and without what the gate lets through for it 0.952 to 0.960.
    """

    def measured() -> list[Run]:
        return _runs(Trace.constant(12, 10), 3 * [("fixed:12", "app"), ("fixed:12", "kernel")], 6.0)

    def check(runs: list[Run]) -> None:
        after = [_after(2.0, r) for r in runs]  # what slow start left in the queue has drained
        pairs = list(zip(after[::2], after[1::2], strict=True))
        assert np.median([app.throughput_mbps / kernel.throughput_mbps for app, kernel in pairs]) > 0.975
        assert np.median([app.delay_mean_ms / kernel.delay_mean_ms for app, kernel in pairs]) < 1.1

    figures_hold(measured, check, _invalid)


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_connections_of_a_process_that_share_a_queue_keep_it_short() -> None:
    """Unless all look for the path's minimum RTT at once, each takes the queue of all for its path: 38 ms of 42."""
    seconds = 25.0
    spec = LinkSpec(Trace.constant(24, 1))
    gated = Settings(Law("rule:1.5"), Target.parse("50ms")).variables()

    def measured() -> link.LinkRun:
        with link.MahimahiLink(spec, sender_variables=gated, flows=2) as path:
            path.start()
            path.go_on(seconds)
            return path.stop()

    def check(found: link.LinkRun) -> None:
        assert compute(found.log, spec.mrtt_ms, found.end_ms, warmup_ms=10_000).qdelay_mean_ms < 26
        assert found.metrics.utilization > 0.95

    figures_hold(measured, check, lambda found: found.invalid_reason)


@pytest.mark.kernel
@pytest.mark.mahimahi
@pytest.mark.parametrize("kind", ["constant", "cellular"])
def test_what_the_gate_measures_of_a_socket_is_what_the_kernels_shim_measures_of_it(kind: str) -> None:
    """Both at once, nobody caps. What holds in every run; docs/alcc-measured.md has the shares of periods.

    With the smoothed RTT in the place of the mean that is computed from it, four periods of ten hold on the cellular
    link, and the median is off by 8 %. With a period's bytes until its round's end and its time until the look after
    it, delivered holds for three periods of ten there, and periods are 15 % longer than the shim's, 6 % on the other.
    """
    cellular = kind == "cellular"
    trace = generate("lte-driving", seconds=30, seed=2027) if cellular else Trace.constant(12, 10)

    def measured() -> dict[str, Any]:
        (run,) = shim.measure([trace], seconds=8.0)
        assert run["periods"] > 20
        return run

    def check(found: dict[str, Any]) -> None:
        assert abs(found["run_delivered_ratio"] - 1) < 0.01
        assert abs(found["run_samples_ratio"] - 1) < 0.1
        assert abs(found["run_rtt_ratio"] - 1) < 0.05
        assert found["rtt_share"] > (0.7 if cellular else 0.95)
        assert found["delivered_share"] > 0.95
        assert found["samples_share"] > 0.95
        assert found["rtt_off_median"] < 0.05
        assert abs(found["period_ratio"] - 1) < (0.1 if cellular else 0.04)
        assert abs(found["cwnd_ratio"] - 1) < 0.05

    figures_hold(measured, check, lambda found: found["invalid_reason"])


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_random_loss_costs_no_more_through_the_gate() -> None:
    """At 1 % there is no queue to shorten most of the time, and what is lost must be sent again at once.

    Of two runs of plain Cubic one has a tenth more throughput than the other, for it met fewer losses. By the law of
    the square root (Mathis et al. 1997) throughput times the root of the share lost is what a sender makes of its
    losses, and does not depend on how many they were: in the simulator it differs by 2 % between runs.
    """

    def measured() -> list[Run]:
        return _runs(Trace.constant(24, 10), [("none", "kernel"), ("rule", "app")], 2 * SECONDS, mrtt_ms=10, loss=0.01)

    def check(runs: list[Run]) -> None:
        sent_again = [r.records["retrans_bytes"].sum() / 1448 / r.metrics.packets for r in runs]
        assert min(sent_again) > 0.005, "nothing was lost"
        assert sent_again[1] < 1.3 * sent_again[0], "the gate has more sent again than was lost"
        plain, gated = (r.metrics.throughput_mbps * p**0.5 for r, p in zip(runs, sent_again, strict=True))
        assert gated >= 0.95 * plain

    figures_hold(measured, check, _invalid)


@pytest.mark.kernel
@pytest.mark.mahimahi
@pytest.mark.parametrize("beside", tunnel.BESIDE)
def test_nobody_stalls_inside_a_tcp_tunnel(beside: Beside) -> None:
    if shutil.which("openvpn", path=SYSTEM_PATH) is None:
        pytest.skip("openvpn is not installed: run docker/packages.sh --bench as root")

    def measured() -> list[dict[str, Any]]:
        runs = list(tunnel.measure([Law("rule:1.5")], seconds=6.0, beside=[beside]))
        assert [run["way"] for run in runs] == ["plain", "gate"]
        assert all(run["throughput_mbps"] > 0 and run["beside_mbps"] > 0 for run in runs)
        return [*runs, *tunnel.compared(runs)]

    def check(told: list[dict[str, Any]]) -> None:
        plain, gate, row = told
        assert not plain["stalled"]
        assert not gate["stalled"]
        assert gate["delay_mean_ms"] < plain["delay_mean_ms"]
        assert row["gate_longest_stall_ms"] == gate["longest_stall_ms"]

    figures_hold(measured, check, lambda told: [run["invalid_reason"] for run in told[:2] if not run["valid"]])


@pytest.fixture
def sent_under_both(
    cgroup: Path, transfer: Callable[..., Transfer], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Settings], dict[str, int]]:
    """Sends over a socket that the kernel caps, from a program under the gate; returns what the gate reports."""

    def send(asked: Settings) -> dict[str, int]:
        sums = Sums()
        environment = replace(asked, report=sums.path).environment()
        with running_loader(cgroup):
            for name in ("LD_PRELOAD", "REINET_ALCC"):
                monkeypatch.setenv(name, environment[name])
            flow = transfer(own_network=False, cgroup=cgroup, seconds=1.0)
            assert flow.cc.startswith("reinet")
            assert flow.result()["intact"]
        return sums.total()

    return send


@pytest.mark.kernel
def test_a_socket_that_the_kernel_caps_is_left_alone(sent_under_both: Callable[[Settings], dict[str, int]]) -> None:
    total = sent_under_both(settings("fixed:4"))
    assert total["flows"] >= 1
    assert total["not_gated"] >= 1
    assert total["closings"] == 0


@pytest.mark.kernel
@pytest.mark.parametrize("asked", [settings("none"), settings("fixed:4", shadow=True)], ids=["none", "shadow"])
def test_a_socket_that_the_kernel_caps_is_watched_by_who_gates_nothing(
    asked: Settings, sent_under_both: Callable[[Settings], dict[str, int]]
) -> None:
    total = sent_under_both(asked)
    assert total["records"] > 5
    assert (total["not_gated"], total["closings"]) == (0, 0)


@pytest.mark.kernel
def test_the_kernels_records_wake_a_loop_that_hears_programs_too(
    cgroup: Path, transfer: Callable[..., Transfer], tmp_path: Path
) -> None:
    """And a program's flow beside the kernel's has slots of its own."""
    period = PeriodConfig()
    with KernelShim([cgroup], period=period) as kernel:
        joined = with_programs(kernel, listen(tmp_path / "socket"), period)
        program = Program(tmp_path / "socket")
        joined.poll(0)
        transfer(own_network=False, cgroup=cgroup, seconds=1.0)
        begin_s = time.monotonic()
        while not len(records := joined.poll(5000)):  # a program that comes wakes it too
            assert time.monotonic() - begin_s < 20
        assert time.monotonic() - begin_s < 4, "the wait was to end with the first record"
        assert (records["slot"] % 2 == 0).all()
        program.tell(record(1 << 60, slot=3))
        found = np.concatenate([joined.poll(100) for _ in range(5)])
        assert found["slot"][found["cookie"] == 1 << 60].tolist() == [1]
        mine = np.array([found[found["cookie"] == 1 << 60]["slot"][0]], np.uint32)
        expires_ns = time.monotonic_ns() + 400_000_000
        joined.apply(np.array([1 << 60], np.uint64), mine, np.array([9], np.uint32), expires_ns, np.zeros(1, np.uint32))
        assert program.caps[3]["lease"] & 0xFFFFF == 9
        program.close()
        joined.close()


@pytest.mark.kernel
@pytest.mark.parametrize("as_memory", [True, False])
@pytest.mark.parametrize(
    "behaviour",
    [{"silent": [GETATTR]}, {"silent": [POLL]}, {"silent": [FLUSH]}, {"flush_error": errno.EIO}],
    ids=["its size", "its readiness", "its end", "an error at its end"],
)
def test_a_file_of_a_programs_own_file_system_neither_ends_nor_delays_the_daemon(
    tmp_path: Path, behaviour: dict[str, Any], as_memory: bool
) -> None:
    """The close() of one that fails ended the deciding process, and one that does not answer had it wait for ever."""
    shim = ProcessShim(listen(tmp_path / "socket"), PeriodConfig())
    failures: list[BaseException] = []

    def take() -> None:
        try:
            for _ in range(3):
                shim.take(time.monotonic_ns())
        except BaseException as error:
            failures.append(error)

    with own_file(tmp_path / "file", **behaviour) as fd:
        given = {"memory_fd": fd} if as_memory else {"event_fd": fd}
        program = Program(tmp_path / "socket", **given)
        program.socket.settimeout(5)
        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        taking.join(5)
        assert not taking.is_alive()
        assert failures == []
        assert program.socket.recv(1) == b"", "it is not heard"
        program.socket.close()

    after = Program(tmp_path / "socket")
    take()
    after.tell(record(5))
    assert len(shim.take(time.monotonic_ns())) == 1
    after.close()
    shim.close()


@pytest.mark.kernel
def test_a_program_may_change_its_user_with_rights_that_one_thread_alone_has() -> None:
    """The C library has all threads change theirs, and ends a process (proftpd's sessions) where one may not."""
    assert seen_in("another_user", settings()) == seen_in("another_user", None)
    assert seen_in("another_user", None)[0] == {"user": 0, "all_read": True}
