"""What is left of Rays that were killed, and what is not."""

from pathlib import Path

from reinet.agents.service.running.ray_left import ray_processes_left

SESSION = "/tmp/ray/session_2026-11-26_15-36-02_064834_{}/logs/agent.log"


def process(proc: Path, pid: int, command: str = "", *files: str) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(command.encode())
    for number, file in enumerate(files):
        (proc / str(pid) / "fd" / str(number)).symlink_to(file)


def test_only_processes_of_a_ray_whose_program_and_raylet_are_gone_are_left(tmp_path: Path) -> None:
    (tmp_path / "meminfo").touch()
    process(tmp_path, 1, "/sbin/init\0", "/dev/null")
    process(tmp_path, 10, "ray::DashboardAgent\0\0\0", "socket:[7]", SESSION.format(100))
    process(tmp_path, 11, "ray::RuntimeEnvAgent\0", SESSION.format(100))
    process(tmp_path, 20, "ray::DashboardAgent\0", SESSION.format(200))
    process(tmp_path, 200, "python\0train.py\0")  # the program lives, whatever became of its raylet
    process(tmp_path, 30, "ray::DashboardAgent\0", SESSION.format(300))
    process(tmp_path, 31, f"raylet\0--log={SESSION.format(300)}\0")  # of `ray start`, which has ended long since
    process(tmp_path, 40)  # a zombie, or another user's
    assert ray_processes_left(tmp_path) == [
        (10, "ray::DashboardAgent", 100),
        (11, "ray::RuntimeEnvAgent", 100),
    ]
