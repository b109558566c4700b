"""``reinet bench alcc --against udp``: how runs become ratios, and what is refused before any link is made."""

import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation.native import summary
from reinet.cli.main import app
from reinet.core.errors import ConfigError


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
    assert (verus["throughput_ratio"], verus["valid"]) == (1.0, False)


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
