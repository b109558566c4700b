"""``reinet bench sim``: its keys, and what must not depend on the machine."""

import json

import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.core import ConfigError
from reinet.envs.sim.bench import measure, measure_scaling


def test_the_figures_belong_together() -> None:
    speed = measure(links=8, seconds=0.05, rounds=1)
    assert speed.env_steps_per_s > 0
    # A step is a round trip of 24 packets, 24 ms long.
    assert speed.packets_per_s / speed.env_steps_per_s == pytest.approx(24, rel=0.1)
    assert speed.realtime_factor / speed.env_steps_per_s == pytest.approx(0.024, rel=0.1)


def test_a_link_is_small() -> None:
    assert 1000 < measure(links=2, seconds=0.01, rounds=1).bytes_per_link < 64 * 1024


def test_links_and_threads_are_compared() -> None:
    scaling = measure_scaling(links=4, seconds=0.1, rounds=2, scales=(2, 8))
    assert set(scaling.scaling) == {2, 8}
    assert scaling.linearity > 0
    assert scaling.two_cores is None or scaling.two_cores > 0


def test_the_command_writes_its_keys() -> None:
    result = CliRunner().invoke(
        app, ["bench", "sim", "--links", "4", "--seconds", "0.1", "--threads", "2", "--json", "-"]
    )
    assert result.exit_code == 0
    written = json.loads(result.stdout)
    assert {"env_steps_per_s", "packets_per_s", "realtime_factor", "bytes_per_link"} <= set(written)
    assert set(written["scaling"]) == {"256", "1024", "4096"}
    assert {"linearity", "two_cores"} <= set(written)
    assert written["threads"] == 2


def test_an_unknown_congestion_control_is_refused() -> None:
    assert isinstance(CliRunner().invoke(app, ["bench", "sim", "--cc", "cubik"]).exception, ConfigError)
