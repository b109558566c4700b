"""``reinet bench alcc --against udp``: how runs become ratios, and what is refused before any link is made."""

import numpy as np
import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation import native
from reinet.agents.evaluation.native import summary
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace


def _run(law: str, way: str, mbps: float, delay_ms: float, valid: bool = True) -> dict[str, object]:
    return {"law": law, "trace": "t", "way": way, "throughput_mbps": mbps, "delay_mean_ms": delay_ms,
            "delay_p95_ms": 2 * delay_ms, "cpu_s": mbps / 100, "valid": valid}  # fmt: skip


def test_ratios_are_of_medians_gate_over_udp() -> None:
    runs = [_run("copa", "gate", mbps, 30.0) for mbps in (9.0, 1.0, 10.0)]
    runs += [_run("copa", "udp", mbps, 20.0) for mbps in (10.0, 12.0, 90.0)]
    runs += [_run("verus", "gate", 5.0, 50.0), _run("verus", "udp", 5.0, 50.0, valid=False)]
    copa, verus = summary(runs)
    assert (copa["law"], copa["runs"], copa["valid"]) == ("copa", 3, True)
    assert copa["throughput_ratio"] == pytest.approx(9 / 12)
    assert copa["delay_ratio"] == copa["delay_p95_ratio"] == pytest.approx(1.5)
    assert copa["cpu_ratio"] == pytest.approx(9 / 12)
    assert copa["spread"] == pytest.approx((90 - 10) / 12), "over UDP; through the gate it is 9 / 9"
    assert verus["spread"] == 0.0
    assert (verus["throughput_ratio"], verus["valid"]) == (1.0, False)


@pytest.mark.parametrize(("failures", "kept"), [(0, True), (2, True), (3, False)])
def test_a_run_in_which_the_host_lagged_is_made_again(
    failures: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"gate": failures, "udp": 0}

    def figures(way: str) -> dict[str, object]:
        left[way] -= 1
        return {
            key: value
            for key, value in _run("", way, 1.0, 1.0, left[way] < 0).items()
            if key not in ("law", "trace", "way")
        }

    monkeypatch.setattr(native, "_run", lambda _path, _law, way, _seconds: way)
    monkeypatch.setattr(native, "_figures", figures)
    told: list[dict[str, object]] = []
    trace = Trace(np.array([1, 2, 3], np.uint32), "t")
    runs, rows = native.measure(["copa"], [trace], seconds=1.0, repeat=1, progress=told.append)
    assert [run["way"] for run in runs] == ["gate", "udp"]
    assert [run["valid"] for run in runs] == [kept, True]
    assert len(told) == 2 + min(failures, native.ATTEMPTS - 1)
    assert rows[0]["valid"] == kept


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--against", "tcp", "--traces", "x"], "choose udp or java"),
        (["--against", "java"], "give --traces"),
        (["--against", "udp"], "--traces"),
        (["--against", "udp", "--traces", "x", "--laws", "copa,cubic"], "cubic do not run over UDP"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["bench", "alcc", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
