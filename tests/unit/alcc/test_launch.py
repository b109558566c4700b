"""``reinet run``: what cannot be preloaded is refused by name, before anything is started."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gated import settings
from helpers.places import ROOT
from reinet.alcc.launch import PRELOAD, Law, Settings, check_command, find_preload, parse_ports, why_not_preloaded
from reinet.cli.run import law_of
from reinet.core.errors import ConfigError
from reinet.core.target import Target

TARGET = Target.parse("+30ms")
REINET = Path(sys.executable).with_name("reinet")


def _built(folder: Path, *options: str, source: str = "int main(void) { return 0; }") -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "program.c").write_text(source)
    program = folder / "program"
    done = subprocess.run([compiler, *options, str(folder / "program.c"), "-o", str(program)], check=False)
    if done.returncode:
        pytest.skip(f"cc cannot build with {options}")
    return program


def test_a_static_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="statically linked"):
        check_command(str(_built(tmp_path, "-static")))


def test_a_go_program_is_refused(tmp_path: Path) -> None:
    mark = '__attribute__((section(".go.buildinfo"))) char mark[] = "\\xff Go buildinf:";'
    note = f"{mark} int main(void) {{ return mark[0]; }}"
    with pytest.raises(ConfigError, match="is a Go program"):
        check_command(str(_built(tmp_path, source=note)))


def test_a_musl_program_is_refused(tmp_path: Path) -> None:
    program = _built(tmp_path, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    with pytest.raises(ConfigError, match="musl"):
        check_command(str(program))


def test_what_is_preloaded_needs_nothing_that_a_program_on_musl_lacks() -> None:
    """Such a program, executed by a gated one, ended before it began: musl's loader found no C library of GNU's."""
    if not (readelf := shutil.which("readelf")):
        pytest.skip("no readelf")
    read = [readelf, "--wide", "--dynamic", "--dyn-syms", str(find_preload())]
    said = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert "(AUXILIARY)" in said, "the GNU C library's loader takes the hooks"
    assert "(NEEDED)" not in said
    assert said.count(" UND ") == 1, "the empty symbol"


def test_a_setuid_program_is_refused(tmp_path: Path) -> None:
    program = _built(tmp_path)
    if os.geteuid() == 0:
        os.chown(program, 65521, 65521)
        program.chmod(0o4755)
    else:
        pytest.skip("needs root: another user's program")
    with pytest.raises(ConfigError, match="setuid"):
        check_command(str(program))


def test_scripts_are_judged_by_their_interpreters(tmp_path: Path) -> None:
    static = _built(tmp_path, "-static")
    script = tmp_path / "script"
    script.write_text(f"#!{static}\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="statically linked"):
        check_command(str(script))
    script.write_text("#!/usr/bin/env python3\n")
    assert check_command(str(script)) == script
    with pytest.raises(ConfigError, match="no such program"):
        check_command("reinet-no-such-program")
    script.chmod(0o644)
    with pytest.raises(ConfigError, match="script: may not be executed; chmod"):
        check_command(str(script))
    with pytest.raises(ConfigError, match="is a folder; name a program in it"):
        check_command(str(tmp_path))


@pytest.mark.parametrize("first_line", ["env -S python3 -u", "env -i python3", "env -u HOME LANG=C python3"])
def test_a_script_that_names_its_interpreter_to_env_with_options_is_judged_by_it(
    tmp_path: Path, first_line: str
) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/usr/bin/{first_line}\n")
    script.chmod(0o755)
    assert check_command(str(script)) == script


@pytest.mark.parametrize("size", [4, 5, 46, 70])
def test_a_program_that_breaks_off_is_refused(tmp_path: Path, size: int) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path(os.path.realpath(sys.executable)).read_bytes()[:size])
    program.chmod(0o755)
    with pytest.raises(ConfigError, match="breaks off"):
        check_command(str(program))


def test_usual_programs_are_not_refused() -> None:
    for name in ("sh", "python3", "curl", "nginx"):
        if path := shutil.which(name):
            assert check_command(name) == Path(path)
    assert why_not_preloaded(Path(os.path.realpath(sys.executable))) is None


def test_ports_and_laws_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_ports(None) == ()
    assert parse_ports("80, 443") == (80, 443)
    for text in ("", "80,", "http", "0", "65536"):
        with pytest.raises(ConfigError):
            parse_ports(text)
    assert law_of("rule", TARGET).text == "rule:1.5"
    assert law_of("fixed:25", TARGET).text == "fixed:25"
    small = law_of(str(ROOT / "checkpoints" / "small"), TARGET)
    assert small.text == "policy"
    assert small.model
    assert "was trained for" not in capsys.readouterr().err
    law_of(str(ROOT / "checkpoints" / "small"), Target.parse("290ms"))
    assert "was trained for targets from 19 to 280 ms, not for 290ms" in " ".join(capsys.readouterr().err.split())
    for law in ("random", "roccet", "fixed:1", "no-such-folder"):
        with pytest.raises(ConfigError):
            law_of(law, TARGET)
    # No list of laws stands behind what is said of a folder.
    with pytest.raises(ConfigError, match=r"`reinet export` makes one$"):
        law_of("no/such", TARGET)


def test_the_gate_comes_after_what_is_preloaded_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address sanitizer ends a program where it is not the first."""
    monkeypatch.setenv("LD_PRELOAD", "libasan.so.8")
    names = settings().variables()["LD_PRELOAD"].split(":")
    assert names == ["libasan.so.8", str(find_preload())]


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(REINET), "run", *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_the_commands_status_signals_and_output_are_its_own(tmp_path: Path) -> None:
    done = _run("--", "sh", "-c", "echo said; exit 7")
    assert (done.returncode, done.stdout) == (7, "said\n")
    assert _run("--json", str(tmp_path / "json"), "--", "sh", "-c", "exit 3").returncode == 3
    # Python ignores SIGPIPE; a program that it starts must not.
    blocked = _run("--", "grep", "SigIgn", "/proc/self/status")
    assert int(blocked.stdout.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0
    assert _run("--", "reinet-no-such-program").returncode == 2


def test_a_container_is_given_what_the_launcher_would_set() -> None:
    page = (ROOT / "docs" / "alcc.md").read_text()
    (told,) = re.findall(r"-e REINET_ALCC='(.*?)'", page)
    assert told == Settings(Law("rule"), TARGET, (80, 443)).text()
    assert f"-e LD_PRELOAD=/reinet/{PRELOAD} " in page
    assert find_preload().parent.name == "lib"
