"""The probe: every prerequisite has a state, a reason and, where it is missing, a cure."""

import pytest

from reinet.kshim import probe


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
    (tmp_path / "vmlinux").write_bytes(b"\0tcp_reno_cong_avoid\0cubictcp_cong_avoid\0")
    monkeypatch.setattr(probe, "BTF", tmp_path / "vmlinux")
    assert probe.wrapper_names("7") == {"cubic": "reinet_cubic7", "reno": "reinet_reno7"}
    found = probe.features()["congestion_controls"]
    assert found.ok
    assert "not bbr" in found.why
    assert "modprobe tcp_bbr" in found.why
    assert "modprobe tcp_bbr" in probe.why_not_capped("bbr")
    assert "only cubic, reno, bbr" in probe.why_not_capped("vegas")
    (tmp_path / "tcp_bbr").write_bytes(b"\0bbr_main\0")  # the module was loaded
    assert set(probe.wrapper_names()) == {"cubic", "reno", "bbr"}
    assert probe.why_not_capped("bbr") == ""


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
    ],
)
def test_cgroup2_is_found_where_it_is_mounted(monkeypatch, tmp_path, mounts, mount):
    table = tmp_path / "mounts"
    table.write_text(mounts, encoding="ascii")
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
