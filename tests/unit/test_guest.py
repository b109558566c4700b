"""docker/guest.sh: the command reaches the guest word by word and its status comes back; QEMU has a stand-in."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker" / "guest.sh"
PROGRAMS = {
    "dpkg-deb": 'mkdir -p "$3$MODULES/9.9-test/kernel" "$3/boot"; echo image >"$3/boot/vmlinuz-9.9-test"',
    "cpio": "cat command",  # all that the stand-in of QEMU needs of the files
    "qemu-system-x86_64": r"""
        while [ "$1" != -initrd ]; do shift; done
        [ -e "$FAILS" ] && exit 1
        gzip -dc "$2" | grep '^cd ' >"$FAILS.line"
        sh "$FAILS.line"; printf "\nreinet: ended with %s\r\n" $?""",
    **dict.fromkeys(("busybox", "depmod", "modprobe", "xz"), "true"),
}


@pytest.fixture
def guest(tmp_path):
    """Run the script with stand-ins of all that it needs; ``without`` names one that is not installed."""

    def run(*arguments, without="", modules="/usr/lib/modules"):
        tools = tmp_path / "tools"
        tools.mkdir(exist_ok=True)
        for name, body in PROGRAMS.items():
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        path = f"{tools}:{os.environ['PATH']}"
        if without:
            (tools / without).unlink()
            (tools / "realpath").symlink_to(str(shutil.which("realpath")))
            path = str(tools)  # the host may have a real one
        (tmp_path / "linux.deb").touch()
        (tmp_path / "it's here").mkdir(exist_ok=True)
        environment = {
            **os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "FAILS": str(tmp_path / "fails"), "MODULES": modules,
        }  # fmt: skip
        return subprocess.run(
            [SCRIPT, *arguments],
            cwd=tmp_path / "it's here",
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_every_word_of_the_command_arrives_and_its_status_is_the_scripts(guest, tmp_path):
    done = guest(
        "../linux.deb", "--", "sh", "-c", 'printf "%s|" "$PWD" "$@"; exit 3', "sh", "it's", "two words", "$HOME"
    )
    assert done.returncode == 3, done.stderr
    assert f"{tmp_path}/it's here|it's|two words|$HOME|" in done.stdout
    assert not list((tmp_path / "cache" / "reinet" / "guest").iterdir())  # nothing is left of it


def test_what_the_command_says_comes_at_once_also_within_a_line(guest):
    said = "../cache/reinet/guest/run-*/said"
    heard = f"printf ..F; for i in $(seq 100); do grep -q F {said} && exit; sleep 0.05; done; exit 9"
    done = guest("../linux.deb", "--", "sh", "-c", heard)
    assert done.returncode == 0, done.stderr
    assert "..F" in done.stdout


@pytest.mark.parametrize("modules", ["/usr/lib/modules", "/lib/modules"])
def test_a_kernel_has_its_modules_where_debian_13_or_12_puts_them(guest, modules):
    done = guest("../linux.deb", "--", "true", modules=modules)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_guest_that_ends_before_its_command_is_a_failure(guest, tmp_path):
    (tmp_path / "fails").touch()
    done = guest("../linux.deb", "--", "true")
    assert (done.returncode, "the guest ended before its command" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "true"), "no kernel is given"),
        (("../linux.deb", "--"), "no command is given"),
        (("../linux.deb",), "no command is given"),
        (("other.deb", "--", "true"), "other.deb is no file"),
    ],
)
def test_a_call_that_lacks_something_says_what(guest, arguments, message):
    done = guest(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "usage: docker/guest.sh KERNEL.deb" in done.stderr


def test_a_program_that_is_missing_is_named_with_its_package(guest):
    done = guest("../linux.deb", "--", "true", without="qemu-system-x86_64")
    assert done.returncode == 1
    assert "missing: qemu-system-x86_64." in done.stderr
    assert "apt-get install qemu-system-x86" in done.stderr
