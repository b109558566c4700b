"""What the daemon is installed with: units, images, the compose file; what no engine here can run is read."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers.places import ROOT
from reinet.cli import doctor
from reinet.daemon.config import load_config
from reinet.daemon.notify import notify

UNITS = ROOT / "docker" / "systemd"
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with a command that this machine has."""
    for unit in UNITS.iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/reinet", shutil.which("true") or ""))
    return tmp_path


@needs_systemd
def test_systemd_takes_the_units_without_a_word(installed: Path) -> None:
    units = [str(unit) for unit in sorted(installed.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=120
    )
    # It reads every unit of the machine and says what it thinks of those too.
    of_ours = [line for line in done.stderr.splitlines() if not re.match(r"(/usr)?/lib/systemd/|/etc/systemd/", line)]
    assert (done.returncode, of_ours) == (0, [])


@needs_systemd
def test_systemd_takes_the_drop_in_that_puts_a_service_under_the_gate(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "alcc.md").read_text()
    (drop_in,) = re.findall(
        r"^```text\n(# /etc/systemd/system/nginx.service.d/.*?)^```$", page, re.DOTALL | re.MULTILINE
    )
    (tmp_path / "nginx.service.d").mkdir()
    program = shutil.which("true") or ""
    for path in ("/usr/bin/reinet", "/usr/sbin/nginx"):
        assert path in drop_in
        drop_in = drop_in.replace(path, program)
    (tmp_path / "nginx.service.d" / "reinet.conf").write_text(drop_in)
    own = f"[Service]\nType=forking\nPIDFile=/run/nginx.pid\nExecStart={program} -g 'daemon on;'\n"
    (tmp_path / "nginx.service").write_text(own)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "nginx.service")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])


@needs_systemd
def test_the_service_is_sandboxed(installed: Path) -> None:
    """Of 10, lower is better; 3.4 is what bpf(), the host's network and root leave at most."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=34", str(installed / "reinet.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_service_may_do_what_serving_needs_and_little_more() -> None:
    unit = (UNITS / "reinet.service").read_text()
    (capabilities,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert set(capabilities.split()) == {"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN"}
    (calls,) = re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE)
    assert {"bpf", "setns"} <= set(calls.split())
    assert "RestrictNamespaces=net" in unit
    assert "NoNewPrivileges=yes" in unit
    assert "Type=notify" in unit, notify.__module__


def test_the_service_may_write_wherever_the_example_lets_it_write() -> None:
    """ProtectSystem=strict leaves what the unit names, and nothing else below /var and /run."""
    unit = (UNITS / "reinet.service").read_text()
    places = {"State": "/var/lib", "Logs": "/var/log", "Runtime": "/run"}
    writable = {
        f"{place}/{name}"
        for kind, place in places.items()
        for names in re.findall(rf"^{kind}Directory=(.*)$", unit, re.MULTILINE)
        for name in names.split()
    }
    wanted = re.findall(r"(?:/var/lib|/var/log|/run)/[\w-]+", (ROOT / "configs" / "daemon.toml").read_text())
    assert {"/var/lib/reinet", "/var/log/reinet", "/run/reinet"} <= set(wanted)
    assert set(wanted) <= writable


def test_the_unit_keeps_numpy_from_a_thread_for_each_core() -> None:
    unit = (UNITS / "reinet.service").read_text()
    (environment,) = re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)
    count = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    env = {**os.environ, **dict([environment.split("=")])}
    assert subprocess.run([sys.executable, "-c", count], env=env, capture_output=True, timeout=60).stdout == b"1\n"


@pytest.mark.parametrize("path", DOCKERFILES, ids=[path.name for path in DOCKERFILES])
def test_an_image_is_built_by_the_same_scripts(path: Path) -> None:
    text = path.read_text()
    scripts = re.findall(r"docker/[\w-]+\.sh", text)
    assert scripts
    for script in scripts:
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} can be run"
    assert f"-f docker/{path.name}" in text


def test_the_compose_file_names_what_there_is() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text())
    assert set(compose["services"]) == {"daemon", "tensorboard", "prometheus"}
    for service in compose["services"].values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / "docker" / source).is_file(), source
            elif not source.startswith("/"):
                assert source in compose["volumes"]
    daemon = compose["services"]["daemon"]
    assert (daemon["cap_drop"], set(daemon["cap_add"])) == (["ALL"], {"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"})


def test_prometheus_asks_where_the_daemon_answers() -> None:
    (job,) = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]
    config = load_config(ROOT / "docker" / "compose-daemon.toml")
    assert job["static_configs"][0]["targets"] == [config.metrics]
    assert job["job_name"] == "reinet", "the alerts say so"


@pytest.mark.parametrize("name", ["build-deb.sh", "packages.sh", "setup.sh"])
def test_a_script_is_well_formed(name: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / "docker" / name)], check=True, timeout=60)


def test_the_package_takes_files_that_there_are() -> None:
    text = (ROOT / "docker" / "build-deb.sh").read_text()
    files = re.findall(r"\b(?:docker|docs|configs)/[\w/.-]+\.\w+", text)
    assert len(files) > 6
    for name in files:
        assert (ROOT / name).is_file(), name


def test_the_set_up_knows_every_system_that_doctor_and_the_readme_do() -> None:
    script, readme = ((ROOT / path).read_text() for path in ("docker/packages.sh", "README.md"))
    cases = re.findall(r"^ +((?:(?:debian|ubuntu):[\d.]+ ?\|? ?)+)\)", script, re.M)
    known = {tuple(case.strip().split(":")) for line in cases for case in line.split("|")}
    assert not (doctor.RUN_ON | doctor.WRITTEN_FOR) - known
    for system, version in doctor.RUN_ON:
        assert re.search(rf"^\| {system.title()} {version}, .* have been run here", readme, re.M), (system, version)
    for python in doctor.PYTHON_RUN:
        assert f"Python {'.'.join(map(str, python))} |" in readme, python
