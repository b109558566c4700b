"""The service's configuration: what it refuses, and how it says so."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.service.config import load_config
from reinet.agents.service.server import serve
from reinet.cli.main import app
from reinet.core.errors import ConfigError

TLS = 'tls = { ca = "ca.pem", cert = "cert.pem", key = "key.pem" }\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "trainer.toml"
    path.write_text(f"[trainer]\n{text}")
    return path


@pytest.mark.parametrize("port", [1, 7443, 65535])
def test_a_port_is_taken(tmp_path: Path, port: int) -> None:
    assert load_config(written(tmp_path, f'listen = "[::1]:{port}"\n{TLS}')).listen == f"[::1]:{port}"
    address = f"http://head:{port}"
    assert load_config(written(tmp_path, f'ray_address = "{address}"')).ray_address == address


def test_an_address_of_a_cluster_needs_no_port_and_the_example_is_valid(tmp_path: Path) -> None:
    for address in ("https://head", "http://[::1]"):
        assert load_config(written(tmp_path, f'ray_address = "{address}"')).ray_address == address
    assert load_config(ROOT / "configs" / "trainer.toml").listen is None


def test_a_check_refuses_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """It said that the service would run there."""
    (tmp_path / "file").touch()
    config = written(tmp_path, f'folder = "{tmp_path}/file/state"')
    with pytest.raises(ConfigError, match=r"trainer\.folder = .*/file/state: .*/file is no folder; name another"):
        raise CliRunner().invoke(app, ["trainer", str(config), "--check"]).exception or AssertionError


def test_who_may_not_write_into_the_folder_is_told_so_and_not_to_move_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock in the folder failed first, with the advice to set another path for the socket."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    config = written(tmp_path, f'folder = "{tmp_path}"\nsocket = "{tmp_path / "s"}"\nrunner = "process"')
    with pytest.raises(ConfigError, match=rf"trainer\.folder = {tmp_path}: this user may not write into"):
        raise CliRunner().invoke(app, ["trainer", str(config)]).exception or AssertionError


@pytest.mark.parametrize("key", ["listen", "ray_address"])
@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_what_is_no_port_is_refused_with_the_key(tmp_path: Path, key: str, port: str) -> None:
    address = f"{'http://' if key == 'ray_address' else ''}127.0.0.1:{port}"
    with pytest.raises(ConfigError, match=rf"trainer\.{key}: {address}: a port lies in 1 to 65535"):
        load_config(written(tmp_path, f'{key} = "{address}"\n{TLS if key == "listen" else ""}'))


def test_what_an_identity_lacks_is_named(tmp_path: Path) -> None:
    text = f'listen = "127.0.0.1:7443"\n{TLS}[[trainer.identities]]\nroles = ["read"]\n'
    with pytest.raises(ConfigError, match=r"trainer\.identities\.0\.name is missing: the common name"):
        load_config(written(tmp_path, text))


@pytest.mark.parametrize("key", ["folder", "socket"])
def test_an_empty_path_is_refused_which_would_be_the_present_folder(tmp_path: Path, key: str) -> None:
    path = tmp_path / "trainer.toml"
    path.write_text(f'[trainer]\n{key} = ""\n')
    with pytest.raises(ConfigError, match=rf"trainer\.{key}: '' names no file or folder"):
        load_config(path)


@pytest.mark.parametrize(
    ("folder", "why"), [("file", "is no folder"), ("loop", "is no folder"), ("file/deep", "Not a")]
)
def test_a_folder_that_cannot_be_one_is_wrong_input_and_names_its_key(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    text = f'folder = "{tmp_path / folder}"\nsocket = "{tmp_path / "s"}"\nrunner = "process"'
    with pytest.raises(ConfigError, match=rf"trainer\.folder = .*/{folder}: {why}.*; set it to"):
        serve(load_config(written(tmp_path, text)))
