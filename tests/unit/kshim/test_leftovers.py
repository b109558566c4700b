"""What is left on a host, and what holds it: said, or said why it cannot be."""

import socket as sockets
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reinet.cli import ctl, doctor
from reinet.daemon.processes.claim import SocketClaim
from reinet.kshim import leftovers, probe


@pytest.fixture
def only_bpf_capabilities(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t000000c000001000\n", encoding="ascii")  # NET_ADMIN, PERFMON, BPF
    monkeypatch.setattr(probe, "_STATUS", status)


def test_without_the_right_to_look_nothing_is_claimed(only_bpf_capabilities):
    assert probe.features()["privileges"].ok
    assert leftovers.why_not_looked() == "this process lacks CAP_SYS_ADMIN"
    assert leftovers.leftovers() == []
    found = doctor._leftovers()
    assert not found.ok
    assert found.why == "cannot look for what a run left behind: this process lacks CAP_SYS_ADMIN"


def test_a_descriptor_that_goes_while_it_is_looked_at_hides_no_other(monkeypatch, tmp_path):
    infos = tmp_path / "12" / "fdinfo"
    infos.mkdir(parents=True)
    for number in range(0, 20, 2):
        (infos / str(number)).symlink_to("gone")
        (infos / str(number + 1)).write_text(f"pos:\t0\nmap_id:\t{number}\n", encoding="ascii")
    monkeypatch.setattr(leftovers, "_processes", lambda: [tmp_path / "11", tmp_path / "12"])
    assert leftovers._openers() == {("map", number): [12] for number in range(0, 20, 2)}


def test_a_holder_says_where_its_sockets_are():
    assert str(leftovers.Holder(4026532281, 2, (12, 13))) == (
        "2 sockets in network namespace 4026532281 (processes 12, 13)"
    )
    many = str(leftovers.Holder(4026532281, 2, tuple(range(1, 1001))))
    assert many.endswith("(processes 1, 2, 3, 4, 5, 6, 7, 8, 992 more)")
    assert "no process lives in it" in str(leftovers.Holder(4026532281, 1, ()))


def test_what_thousands_hold_is_said_in_a_line(monkeypatch):
    left = [leftovers.Loaded("program", number, "reinet_cubic", ()) for number in range(500)]
    held = [leftovers.Holder(number, 1, tuple(range(1000))) for number in range(300)]
    for name, found in (("why_not_looked", ""), ("leftovers", left), ("holders", held), ("on_their_way", False)):
        monkeypatch.setattr(doctor, name, lambda *_, found=found: found)
    why = doctor._leftovers().why
    assert "492 more; held by" in why
    assert why.endswith("; 292 more")
    assert len(why) < 2000


def test_of_a_host_whose_shims_are_not_all_seen_no_place_of_sockets_is_claimed(monkeypatch):
    """Then only the control maps of ended shims are known to be left; by their flows' maps sockets would be found."""
    left = [leftovers.Loaded("map", 7, "reinet_control", ())]
    for name, found in (("why_not_looked", ""), ("leftovers", left), ("on_their_way", False)):
        monkeypatch.setattr(doctor, name, lambda *_, found=found: found)
    assert doctor._leftovers().why == (
        "left by a run that has ended, inert: BPF map 7 reinet_control; held by sockets that are not looked for, since "
        "a shim lives whose process is not seen from here"
    )


def test_names_are_taken_on_from_the_latest_shim_first_and_none_that_is_no_shims(monkeypatch):
    _kshim = pytest.importorskip("reinet.kshim._kshim")
    names = {3: "reinet_cubic", 5: "reinet_reno7", 6: "reinet_cubic7", 8: "reinet_bbr123", 9: "reinet_half", 10: ""}

    def wrapper_of(control: int) -> str:
        if control not in names:
            raise FileNotFoundError  # gone with its last socket
        return names[control]

    monkeypatch.setattr(_kshim, "wrapper_of", wrapper_of)
    left = [leftovers.Loaded("map", number, leftovers.CONTROL, ()) for number in (*names, 11)]
    assert leftovers.suffixes_of(left) == ["123", "7", ""]


def test_what_a_killed_daemon_left_beside_its_control_socket_is_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor said that nothing was left, and nobody removed the socket of metrics."""
    path = {name: tmp_path / name for name in ("control.sock", "metrics", "programs", "foreign")}
    for name, kind in (("metrics", sockets.SOCK_STREAM), ("programs", sockets.SOCK_SEQPACKET)):
        with sockets.socket(sockets.AF_UNIX, kind) as dead:
            dead.bind(str(path[name]))
        (tmp_path / f"{name}.lock").touch()
    with sockets.socket(sockets.AF_UNIX) as foreign:
        foreign.bind(str(path["foreign"]))
    for name, found in (("why_not_looked", ""), ("leftovers", []), ("holders", []), ("remove_leftovers", None)):
        monkeypatch.setattr(leftovers, name, lambda *_, found=found: found)
    monkeypatch.setattr(doctor, "own_socket", lambda name: tmp_path / name)
    with SocketClaim(path["control.sock"]), sockets.socket(sockets.AF_UNIX) as alive:
        alive.bind(str(path["control.sock"]))
        alive.listen()
        assert f"{path['metrics']} {path['programs']} (" in doctor._sockets().why
        done = CliRunner().invoke(ctl.app, ["detach", "--socket", str(path["control.sock"])])
        assert (done.exit_code, done.output.count("removed the stale socket")) == (0, 2)
        assert "no socket is left" in doctor._sockets().why
        assert path["control.sock"].exists()
    assert list(tmp_path.iterdir()) == [path["foreign"]]
