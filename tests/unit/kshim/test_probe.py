"""The probe: every prerequisite has a state, a reason and, where it is missing, a cure."""

import os
import re
from pathlib import Path

import pytest

from reinet.kshim import probe
from reinet.kshim.shim import WRAPPED_CC

ROOT = Path(__file__).parents[3]


def names_of(*controls):
    """Return type information that knows the functions of these congestion controls, and no others."""
    return b"\0" + "".join(f"{name}\0" for cc in controls for name in probe._KFUNCS[cc]).encode("ascii")


@pytest.fixture
def no_btf(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")


def test_every_feature_says_why_and_how_to_mend():
    for name, feature in probe.features().items():
        assert feature.why, name
        assert feature.ok or feature.cure, name


def test_without_btf_nothing_that_rests_on_it_is_claimed(no_btf):
    found = probe.features()
    assert not found["btf"].ok
    assert "CONFIG_DEBUG_INFO_BTF" in found["btf"].cure
    for name in ("struct_ops", "struct_ops_link", "congestion_controls", "ring_buffer", "tcp_iterator"):
        assert (found[name].ok, found[name].cure) == (False, "see btf")


def test_a_kernel_that_lacks_a_name_is_told_from_one_that_has_it(monkeypatch, tmp_path):
    btf = tmp_path / "vmlinux"
    btf.write_bytes(b"\0bpf_struct_ops_tcp_congestion_ops\0xcubictcp_cong_avoid\0")
    monkeypatch.setattr(probe, "BTF", btf)
    found = probe.features()
    assert found["struct_ops"].ok
    assert not found["congestion_controls"].ok
    assert "CONFIG_TCP_CONG_CUBIC=y" in found["congestion_controls"].cure
    assert "Linux 6.4" in found["struct_ops_link"].cure


def test_a_congestion_control_that_is_missing_does_not_stop_the_others(monkeypatch, tmp_path):
    (tmp_path / "vmlinux").write_bytes(names_of("reno", "cubic"))
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")
    assert probe.wrapper_names("7") == {"cubic": "reinet_cubic7", "reno": "reinet_reno7"}
    found = probe.features()["congestion_controls"]
    assert found.ok
    assert "not bbr" in found.why
    assert "modprobe tcp_bbr" in found.why
    assert "modprobe tcp_bbr" in probe.why_not_capped("bbr")
    assert "only cubic, reno, bbr" in probe.why_not_capped("vegas")
    (tmp_path / "tcp_bbr").write_bytes(names_of("bbr"))  # the module was loaded
    assert set(probe.wrapper_names()) == {"cubic", "reno", "bbr"}
    assert probe.why_not_capped("bbr") == ""


def test_a_kernel_without_one_of_a_wrappers_functions_runs_the_other_wrappers(monkeypatch, tmp_path):
    known = names_of("reno", "bbr", "cubic").replace(b"\0bbr_sndbuf_expand\0", b"\0")
    (tmp_path / "vmlinux").write_bytes(known)
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")
    assert set(probe.wrapper_names()) == {"cubic", "reno"}
    assert "bbr has another form in the running kernel, without bbr_sndbuf_expand" in probe.why_not_capped("bbr")


def test_the_kernels_type_information_which_is_megabytes_is_read_once(monkeypatch, tmp_path):
    (tmp_path / "vmlinux").write_bytes(names_of("reno", "cubic", "bbr"))
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")
    opened, real = [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *a, **kw: opened.append(path) or real(path, *a, **kw))
    probe.features()
    assert set(probe.wrapper_names()) == {"cubic", "reno", "bbr"}
    assert opened.count(probe.BTF) == 1


@pytest.mark.parametrize(("is_operation", "suffix"), [(0, ""), (1, "_tx_start")])
def test_the_probe_asks_for_the_functions_that_the_wrappers_call(monkeypatch, tmp_path, is_operation, suffix):
    (tmp_path / "vmlinux").write_bytes(b"\0cwnd_event_tx_start\0" if is_operation else b"")
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")
    for cc in WRAPPED_CC:
        source = (ROOT / "kshim" / "bpf" / f"wrap_{cc}.bpf.h").read_text(encoding="ascii")
        called = set(re.findall(r"^extern .*?(\w+)\(.*__ksym", source, re.MULTILINE))
        other = {name for name in called if re.search("cwnd_event", name) and not name.endswith(f"cwnd_event{suffix}")}
        assert set(probe._functions(cc)) == called - other


@pytest.mark.parametrize(
    ("offsets", "ok"),
    [
        ("monotonic           0         0\nboottime            0         0\n", True),
        ("monotonic           0         0\nboottime        86400         0\n", True),
        ("monotonic       -1000         0\nboottime            0         0\n", False),
        ("monotonic           0 500000000\nboottime            0         0\n", False),
        (None, True),
    ],
)
def test_a_time_namespace_with_another_monotonic_clock_is_refused(monkeypatch, tmp_path, offsets, ok):
    if offsets is not None:
        (tmp_path / "offsets").write_text(offsets)
    monkeypatch.setattr(probe, "_TIME_OFFSETS", tmp_path / "offsets")
    found = probe.features()["clock"]
    assert found.ok is ok
    assert ok or "host's time namespace" in found.cure


def test_names_of_wrappers_fit_the_kernel():
    assert max(len(name) for name in probe.wrapper_names("999").values()) <= 15


@pytest.mark.parametrize(
    ("mounts", "mount"),
    [
        ("proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "/sys/fs/cgroup"),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\nnone /a\\040b cgroup2 rw 0 0\n", "/a b"),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", None),
        ("none /群\\134\udcff cgroup2 rw 0 0\n", "/群\\\udcff"),
        ("x /a\r\x0b\x85\u2028b fuse rw 0 0\ncgroup2 /c cgroup2 rw 0 0\n", "/c"),  # whoever may mount names it
    ],
)
def test_cgroup2_is_found_where_it_is_mounted(monkeypatch, tmp_path, mounts, mount):
    table = tmp_path / "mounts"
    table.write_bytes(os.fsencode(mounts))
    monkeypatch.setattr(probe, "_MOUNTS", table)
    found = probe.cgroup2_mount()
    assert (str(found) if found else None) == mount
    assert probe.features()["cgroup2"].ok == bool(mount)


def test_missing_capabilities_are_named(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000008000001000\n", encoding="ascii")  # CAP_NET_ADMIN and CAP_BPF
    monkeypatch.setattr(probe, "_STATUS", status)
    assert probe.features()["privileges"] == (
        False,
        "this process lacks CAP_PERFMON",
        "run as root, or grant these capabilities",
    )
