"""The daemon's configuration: defaults, and every way to get it wrong with its cure."""

import re
from pathlib import Path

import pytest

from helpers.places import ROOT
from reinet.core.errors import ConfigError
from reinet.daemon.config import DaemonConfig, default_socket, load_config

EXAMPLE = ROOT / "configs" / "daemon.toml"
NEEDED = '[daemon]\nmodel = "rule"\ncgroups = ["/sys/fs/cgroup/x"]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "daemon.toml"
    path.write_text(text)
    return path


def test_the_least_that_works(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, NEEDED))
    assert (str(config.asked), config.lease_ms, config.log_dir) == ("+30ms", 500, None)
    assert config.cgroups == (Path("/sys/fs/cgroup/x"),)
    assert config.socket == default_socket()


def test_one_cgroup_needs_no_list(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[daemon]\nmodel = "rule"\ncgroups = "/sys/fs/cgroup/x"\n'))
    assert config.cgroups == (Path("/sys/fs/cgroup/x"),)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ('target = "2.5x"', "2.5x"),
        ('target = "60ms"', "60ms"),
        ("target = 60", "60ms"),
        ("target_ms = 60.0", "60ms"),
        ("target_ms = 37", "37ms"),
    ],
)
def test_a_target_is_a_text_a_number_or_the_older_key(tmp_path: Path, line: str, asked: str) -> None:
    assert str(load_config(write(tmp_path, f"{NEEDED}{line}\n")).asked) == asked


def test_the_example_shows_every_key_with_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    text = EXAMPLE.read_text()
    uncommented = re.sub(r"^# (\w+ = |\[\[)", r"\1", text, flags=re.MULTILINE)
    config = load_config(write(tmp_path, uncommented))
    plain = load_config(EXAMPLE)
    assert config.model_fields_set == set(DaemonConfig.model_fields) - {"target_ms"}  # another name of target
    assert [policy.name for policy in config.policies] == ["video"]
    optional = ("log_dir", "min_period_ms", "metrics", "model_sha256", "registry", "processes", "record")
    unset = dict.fromkeys(optional)
    assert config.model_copy(update={**unset, "policies": ()}) == plain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEEDED + "tagret_ms = 40\n", r"unknown key daemon\.tagret_ms; did you mean 'target_ms'\?"),
        (NEEDED + "zzz = 40\n", r"unknown key daemon\.zzz; known are model, model_sha256, cgroups"),
        ("target_ms = 40\n" + NEEDED, r"unknown key 'target_ms' outside \[daemon\]: it belongs into the \[daemon"),
        ("[deamon]\n", r"unknown key 'deamon' outside \[daemon\].*did you mean \[daemon\]"),
        ("", r"no \[daemon\] table"),
        (NEEDED + 'mode = "shade"\n', r"daemon\.mode = 'shade': Input should be 'enforce', 'shadow' or 'hold-out'"),
        (NEEDED + "hold_out_share = 0.9\n", r"daemon\.hold_out_share = 0\.9: .*less than or equal to 0\.5"),
        (NEEDED + 'log_dir = ""\n', r"daemon\.log_dir: '' names no file or folder; .* leave the key out"),
        (NEEDED + 'socket = ""\n', r"daemon\.socket: '' names no file"),
        (NEEDED + 'processes = "/run/a\\u0000b"\n', r"daemon\.processes: '/run/a.x00b' names no file"),
        (NEEDED + '[daemon.record]\nfolder = ""\n', r"daemon\.record\.folder: '' names no file"),
        (NEEDED + f"target = 1{'0' * 400}\n", r"daemon\.target: a number of 401 digits; .* at most 10000"),
        (NEEDED + "[policy]\n", r"write \[\[policy\]\], once for each policy"),
        (NEEDED + "policies = []\n", r"unknown key daemon\.policies; write \[\[policy\]\]"),
        (NEEDED + '[[policies]]\nname = "web"\n', r"unknown key 'policies'; write \[\[policy\]\]"),
        (NEEDED + '[[policy]]\nname = "a"\nlocal_ports = 443\n', r"local_ports = 443: write a list, in brackets"),
        (NEEDED + '[[daemon.policy]]\nname = "web"\n', r"unknown key daemon\.policy; write \[\[policy\]\]"),
        (NEEDED + "[[policy]]\nport = 4\n", r"\[\[policy\]\] 1: policy\.name is missing"),
        (NEEDED + '[[policy]]\nname = "a"\nport = 4\n', r"unknown key policy\.port; did you mean 'local_ports'\?"),
        (NEEDED + '[[policy]]\nname = "a"\n[[policy]]\nname = "a"\n', r"\[\[policy\]\] 2: the name 'a' is taken"),
        (NEEDED + '[[policy]]\nname = "default"\n', r"choose another name"),
        (NEEDED + '[[policy]]\nname = "a"\nlocal_ports = ["9-8"]\n', r"local_ports\.0.*'9-8' is no port and no range"),
        (NEEDED + '[[policy]]\nname = "a"\nlocal_ports = ["x"]\n', r"'x' is no port and no range: write 443"),
        (NEEDED + '[[policy]]\nname = "a"\npeers = ["10.0.0.1/8"]\n', r"has host bits set; write a prefix"),
        (NEEDED + '[[policy]]\nname = "a"\ntarget = "5"\n[[policy]]\nname = "b"\ntarget = "q"\n', r"2: .*'q'"),
        ("daemon = 3\n", r"no \[daemon\] table"),
        ('[daemon]\nmodel = "rule"\n', r"daemon\.cgroups is missing"),
        ('[daemon]\ncgroups = ["/x"]\n', r"daemon\.model is missing"),
        ('[daemon]\nmodel = "rule"\ncgroups = []\n', r"daemon\.cgroups = \[\]"),
        ('[daemon]\nmodel = "rule"\ncgroups = ["/x", "/x"]\n', r"/x is listed twice"),
        (NEEDED + "lease_ms = 5000\n", r"daemon\.lease_ms = 5000: .*less than or equal to 900"),
        (NEEDED + "lease_ms = 100\n", r"tick_ms = 50 is more than a third of lease_ms = 100.*use tick_ms <= 33"),
        (NEEDED + "target_ms = -1\n", r"daemon\.target_ms = -1"),
        (NEEDED + "target_ms = nan\n", r"daemon\.target_ms = nan"),
        (NEEDED + 'target_ms = "fast"\n', r"daemon\.target_ms = 'fast'"),
        (NEEDED + 'target = "fast"\n', r"daemon\.target: target 'fast': write 50ms .*\+30ms .*2\.5x"),
        (NEEDED + 'target = "1.05x"\n', r"daemon\.target: target 1\.05x: .* from 1\.1x"),
        (NEEDED + "target = [50]\n", r"daemon\.target: target \[50\]: write 50ms"),
        (
            NEEDED + 'target = "2.5x"\ntarget_ms = 50\n',
            r'target = "2\.5x" and target_ms = 50 are both given; keep one',
        ),
        (NEEDED + "ceiling_pkts = 1\n", r"daemon\.ceiling_pkts = 1"),
        (NEEDED + 'socket = "/"\n', r"daemon\.socket: '/' names no file; write the path of a socket"),
        (NEEDED + 'metrics = "unix:/a\\u0000"\n', r"daemon\.metrics: .* names no file; write the path of a socket"),
        (NEEDED + f'socket = "/{"x" * 120}"\n', r"at most 107 bytes, this one 121"),
        (NEEDED + f'processes = "/{"x" * 120}"\n', r"daemon\.processes: .*at most 107 bytes, this one 121"),
        (NEEDED + f'metrics = "unix:/{"x" * 120}"\n', r"daemon\.metrics: .*at most 107 bytes, this one 121"),
        (NEEDED + 'socket = "/a/b"\nprocesses = "/a/b"\n', r"socket and processes are both /a/b; give each a path"),
        (NEEDED + 'socket = "/a/b"\nmetrics = "unix:/a/b"\n', r"socket and metrics are both /a/b; give each a path"),
        (NEEDED + 'model_sha256 = "abc"\n', r"daemon\.model_sha256 = 'abc'"),
        (NEEDED + "max_flows = 0\n", r"daemon\.max_flows = 0"),
        (NEEDED + "records_mb = 3\n", r"daemon\.records_mb: .*1, 2, 4, 8, \.\.\. MiB; use 2 or 4"),
        (NEEDED + 'metrics = "0.0.0.0:9469"\n', r"daemon\.metrics: '0\.0\.0\.0:9469' is not a loopback address"),
        (NEEDED + 'metrics = "9469"\n', r"daemon\.metrics: '9469': write 127\.0\.0\.1:9469"),
        (NEEDED + 'metrics = "127.0.0.1:99999"\n', r"a port lies in 1 to 65535"),
        (NEEDED + 'metrics = "127.0.0.1:0"\n', r"daemon\.metrics: '127\.0\.0\.1:0': a port lies in 1 .*choose one"),
        (NEEDED + 'metrics = "unix:run"\n', r"a Unix socket's path begins with /"),
        (NEEDED + "lease_ms = 1\ntick_ms = 0\n", r"(?s)lease_ms = 1.*tick_ms = 0"),
        ("[daemon\n", r"not valid TOML.*line 1"),
    ],
)
def test_mistakes_name_the_file_the_key_and_the_cure(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*configs/daemon.toml is a commented example"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"[daemon]\n\xff\xfe")
    with pytest.raises(ConfigError, match="byte 9 is not UTF-8"):
        load_config(binary)
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(huge)


def test_the_default_socket_belongs_to_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_socket() == Path("/run/reinet/control.sock")  # root's is the same with and without sudo -E
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert default_socket() == Path("/run/user/1000/reinet/control.sock")
