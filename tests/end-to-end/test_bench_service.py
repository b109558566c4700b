"""``reinet bench service`` asks a real service; here it asks little."""

from types import SimpleNamespace

import pytest

from helpers.places import ROOT
from reinet.agents.service import bench_load
from reinet.agents.service.bench import measure


def test_every_part_of_the_load_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients come to it as late as they may, when the second is over: each lists all the same.
    monkeypatch.setattr(bench_load, "random", SimpleNamespace(uniform=lambda _least, most: most))
    models = [ROOT / "checkpoints" / name for name in ("default", "small")]
    found = measure(
        listing=3, followers=4, sending=2, upload_mb=1.0, seconds=1, runner="", models=models,
    )  # fmt: skip
    assert set(found) == {"watch", "clients", "followers", "uploads"}
    assert -1 < found.pop("watch")["core_share"] < 1
    assert found["uploads"]["clients"] == 3, "they list while traces come in"
    assert found["clients"]["lists"] >= 3
    assert 0 < found["clients"]["list_ms_p50"] <= found["clients"]["list_ms_p99"]
    assert 0 < found["followers"]["has_it_s_p50"] <= found["followers"]["all_have_it_s"]
    assert found["uploads"]["mb_per_s"] > 0
    assert all(part["service_peak_mb"] > 10 for part in found.values())
