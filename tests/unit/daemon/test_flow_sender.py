"""A daemon sends what it recorded to the training service: each recording once, whatever becomes of the service."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import structlog.testing

from helpers.trainer import Service
from reinet.daemon.config import DaemonConfig
from reinet.daemon.processes import flow_sender
from reinet.daemon.processes.flow_sender import QUIET_S, FlowSender
from reinet.daemon.registry import Address
from reinet.envs.trace.estimated_set import estimated
from reinet.kshim.recorded import RECORD_DTYPE, header


def recording(folder: Path, name: str, seconds: int = 10, old: bool = True) -> Path:
    """A flow over a link of 12 Mbit/s that always had a packet waiting, as the recorder writes it."""
    made = np.zeros(50 * seconds, RECORD_DTYPE)
    made["time_us"] = 20_000 * np.arange(len(made))
    made["period_us"], made["mss_bytes"], made["inflight_pkts"] = 20_000, 1448, 40
    made["delivered_bytes"], made["rtt_samples"] = 1448 * 20, 20
    made["min_rtt_us"], made["rtt_least_us"] = 40_000, 70_000
    path = folder / f"{name}.flow"
    path.write_bytes(header(name) + made.tobytes())
    if old:
        then_s = path.stat().st_mtime - QUIET_S - 1
        os.utime(path, (then_s, then_s))
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("flows"), idle=True, more="[trainer.quota]\nflows_mb = 1\n")
    made.start()
    yield made
    made.close()


def sender_of(service: Service, folder: Path, called: str) -> FlowSender:
    folder.mkdir()
    return FlowSender(Address(f"unix:{service.socket}"), called, folder)


def test_what_is_over_goes_once_and_what_grew_goes_again(service: Service, tmp_path: Path) -> None:
    sender = sender_of(service, tmp_path / "own", "host-1")
    place = service.folder / "flows" / "local" / "host-1"
    old, fresh = recording(tmp_path / "own", "a"), recording(tmp_path / "own", "b", old=False)
    sender.round(QUIET_S, 20)
    assert not sender.problem
    assert [path.name for path in place.iterdir()] == ["a.flow"], "b is written to"
    assert (place / "a.flow").read_bytes() == old.read_bytes()
    found, _ = estimated([service.folder / "flows"])
    assert [round(one.trace.mean_mbps, 1) for one in found] == [12.0], "the service's folder is what is estimated from"
    (place / "a.flow").unlink()
    sender.round(0.0, 20)
    assert [path.name for path in place.iterdir()] == ["b.flow"], "a has gone before"
    recording(tmp_path / "own", "b", seconds=20)
    FlowSender(Address(f"unix:{service.socket}"), "host-1", tmp_path / "own").round(QUIET_S, 20)
    assert (place / "b.flow").read_bytes() == fresh.read_bytes(), "also after a start"
    assert [path.name for path in place.iterdir()] == ["b.flow"]


def test_a_recording_from_before_the_clock_was_set_back_goes_too(service: Service, tmp_path: Path) -> None:
    sender = sender_of(service, tmp_path / "own", "host-9")
    path = recording(tmp_path / "own", "later", old=False)
    then_s = path.stat().st_mtime + 86_400
    os.utime(path, (then_s, then_s))
    sender.round(QUIET_S, 20)
    assert not sender.problem
    assert (service.folder / "flows" / "local" / "host-9" / "later.flow").exists()


def test_a_recording_that_made_room_meanwhile_keeps_no_other_from_going(service: Service, tmp_path: Path) -> None:
    sender = sender_of(service, tmp_path / "own", "host-6")
    recording(tmp_path / "own", "k")
    (tmp_path / "own" / "gone.flow").symlink_to(tmp_path / "nowhere")  # listed, and not there when it is looked at
    sender.round(QUIET_S, 20)
    assert not sender.problem
    assert (service.folder / "flows" / "local" / "host-6" / "k.flow").exists()


def test_what_another_daemon_records_is_for_that_one_to_send(service: Service, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    recording(tmp_path / "own", "m")
    ours = [False, True]
    sender = FlowSender(Address(f"unix:{service.socket}"), "host-7", tmp_path / "own", lambda: ours.pop(0))
    place = service.folder / "flows" / "local" / "host-7"
    sender.round(QUIET_S, 20)
    assert not place.exists()
    sender.round(QUIET_S, 20)
    assert (place / "m.flow").exists()


def test_a_service_that_is_away_costs_nothing_but_the_try(service: Service, tmp_path: Path) -> None:
    sender = sender_of(service, tmp_path / "own", "host-2")
    kept = recording(tmp_path / "own", "c")
    away = FlowSender(Address(f"unix:{tmp_path}/nobody"), "host-2", tmp_path / "own")
    away.round(QUIET_S, 20)
    assert "no training service answers" in away.problem
    assert kept.exists()
    sender.round(QUIET_S, 20)
    assert (service.folder / "flows" / "local" / "host-2" / "c.flow").exists()


def test_a_service_of_the_release_before_has_no_such_call(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    (tmp_path / "own").mkdir()
    sender = FlowSender(Address(f"unix:{tmp_path}/s"), "host-3", tmp_path / "own")
    recording(tmp_path / "own", "d")
    sender.round(QUIET_S, 20)
    server.stop(0).wait()
    assert "UNIMPLEMENTED" in sender.problem


def test_the_service_takes_recordings_alone_and_the_oldest_make_room(service: Service, tmp_path: Path) -> None:
    sender = sender_of(service, tmp_path / "own", "host-4")
    (tmp_path / "own" / "e.flow").write_bytes(b"#!/bin/sh\n" * 100)
    sender.round(0.0, 20)
    assert "no recorded flow" in sender.problem
    assert not (service.folder / "flows" / "local" / "host-4").exists()
    (tmp_path / "own" / "e.flow").unlink()
    for number in range(5):
        recording(tmp_path / "own", f"f{number}", seconds=120)  # 0.3 MB each
        sender.round(0.0, 20)
        assert not sender.problem
    left = sorted(path.name for path in (service.folder / "flows").rglob("*.flow"))
    assert left == ["f2.flow", "f3.flow", "f4.flow"]
    recording(tmp_path / "own", "g", seconds=500)
    sender.round(0.0, 20)
    assert "are taken" in sender.problem
    assert not list((service.folder / "staged").iterdir())


def test_a_recording_that_is_refused_is_left_out_and_the_others_go(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = sender_of(service, tmp_path / "own", "host-5")
    place = service.folder / "flows" / "local" / "host-5"
    damaged = tmp_path / "own" / "a.flow"
    damaged.write_bytes(b"x" * 100)
    (tmp_path / "own" / "no name.flow").write_bytes(recording(tmp_path / "own", "z").read_bytes())
    (tmp_path / "own" / "c.flow").mkdir()  # what cannot be read
    with structlog.testing.capture_logs() as lines:
        sender.round(0.0, 20)
        assert "no recorded flow" in sender.problem
        assert [path.name for path in place.iterdir()] == ["z.flow"]
        tried: list[str] = []
        monkeypatch.setattr(flow_sender, "_parts", lambda *given: tried.append(given[1]) or iter(()))
        sender.round(0.0, 20)
    assert tried == []
    assert [(line["event"], line["count"]) for line in lines] == [("recorded flows are refused and left out", 3)]
    monkeypatch.undo()
    recording(tmp_path / "own", "a")
    (tmp_path / "own" / "c.flow").rmdir()
    sender.round(0.0, 20)
    assert (place / "a.flow").exists(), "it is another one now"
    monkeypatch.setattr(flow_sender, "AGAIN_S", 0.0)
    (tmp_path / "own" / "b!.flow").write_bytes(b"x")
    real = flow_sender._parts
    monkeypatch.setattr(flow_sender, "_parts", lambda *given: tried.append(given[1]) or real(*given))
    for _ in range(2):
        sender.round(0.0, 20)
    assert tried == ["b!", "b!"], "what was refused is tried again after a while"
    assert not sender.problem, "and said once"


@pytest.mark.parametrize("called", ["../x", "a/b", "..", "x\n"])
def test_a_daemons_name_is_no_path(service: Service, tmp_path: Path, called: str) -> None:
    sender = sender_of(service, tmp_path / "own", called)
    recording(tmp_path / "own", "h")
    sender.round(0.0, 20)
    assert "is no name" in sender.problem


def test_to_send_a_service_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"record\.send needs \[daemon\.registry\]"):
        DaemonConfig.model_validate(
            {"model": "rule", "cgroups": [tmp_path], "record": {"folder": tmp_path, "send": True}}
        )
