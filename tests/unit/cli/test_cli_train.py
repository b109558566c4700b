"""``reinet train``: what it refuses before it prepares anything."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.core.errors import ConfigError


@pytest.mark.parametrize("run_dir", ["loop", "file/deep", "file"])
def test_a_run_folder_that_cannot_be_one_is_refused_before_anything_is_prepared(tmp_path: Path, run_dir: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    command = ["train", str(tmp_path / "none.toml"), "--run-dir", str(tmp_path / run_dir)]
    with pytest.raises(ConfigError, match=r"--run-dir .*: .*/(loop|file) is no folder"):
        raise CliRunner().invoke(app, command).exception or AssertionError
