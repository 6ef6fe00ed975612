"""NEARHIT_HOME: made for its owner alone, held by one gateway, and clear about what is wrong."""

import errno
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from gateway.serve_home import (
    CannotServe,
    fresh_folder,
    leave_first_key,
    listen,
    lock,
    prepare,
    take_first_key,
    writing,
)
from gateway.settings import EngineSettings, Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_for_the_owner_alone(tmp_path: Path) -> None:
    """They hold secrets, prompts and sockets that make an administrator."""
    home = tmp_path / "a" / "home"
    assert prepare(Settings(home=home)) == home / "run"
    assert [mode(path) for path in (home, home / "run", home / "journal")] == [0o700] * 3
    prepare(Settings(home=home))  # a second start finds them


def test_a_home_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    """A file in the way fails for root too."""
    (tmp_path / "home").write_text("")
    with pytest.raises(CannotServe, match="NEARHIT_HOME"):
        prepare(Settings(home=tmp_path / "home"))


def test_whose_a_home_is_stands_beside_that_it_is_refused(tmp_path: Path) -> None:
    """`[Errno 13] Permission denied: …/lock` after one start with sudo did not say who had begun the folder."""
    refused = PermissionError(
        errno.EACCES, "Permission denied", str(tmp_path / "run" / "lock")
    )  # root is refused nothing
    with pytest.raises(CannotServe) as told, writing(tmp_path):
        raise refused
    assert f"{tmp_path} is of user {os.geteuid()} (mode 0700)" in str(told.value)
    assert "chown it, or set NEARHIT_HOME" in str(told.value)
    with pytest.raises(CannotServe) as above, writing(tmp_path / "home"):
        raise refused
    assert "chown" not in str(above.value)  # of a folder of the system that would be bad advice


def test_a_lock_that_cannot_be_made_is_told_like_everything_else(tmp_path: Path) -> None:
    """A home on a volume mounted to be read ended with a bare `[Errno 30]`."""
    with pytest.raises(CannotServe, match="cannot write to"):
        lock(tmp_path / "gone")


def test_a_full_disk_is_told_with_the_folder(tmp_path: Path) -> None:
    """`[Errno 28] No space left on device` did not say which of a container's disks was meant."""
    (tmp_path / "lock").symlink_to("/dev/full")
    with pytest.raises(CannotServe, match=f"cannot write to {tmp_path}: "):
        lock(tmp_path)


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "", "é"])
def test_an_engine_name_becomes_part_of_a_path(tmp_path: Path, name: str) -> None:
    """It must not lead out of the folder."""
    if name == "..":
        prepare(Settings(home=tmp_path, engines={name: EngineSettings()}))  # engine-...sock is an ordinary name
        return
    with pytest.raises(CannotServe, match="engines"):
        prepare(Settings(home=tmp_path, engines={name: EngineSettings()}))


def test_a_path_too_long_for_a_unix_socket_is_told_at_once(tmp_path: Path) -> None:
    """The error of the operating system comes late and says little."""
    with pytest.raises(CannotServe, match="too long"):
        prepare(Settings(home=tmp_path / ("x" * 100)))


def test_one_gateway_holds_a_home(tmp_path: Path) -> None:
    """Two writers on one SQLite file lose data."""
    held = lock(tmp_path)
    with pytest.raises(CannotServe, match=f"process {os.getpid()}"):
        lock(tmp_path)
    with pytest.raises(CannotServe):
        lock(tmp_path, patience=60)  # the holder lives: waiting would not help
    os.close(held)
    os.close(lock(tmp_path))


def test_what_a_killed_gateway_left_is_waited_for(tmp_path: Path) -> None:
    """Its workers finish what they do and then let go."""
    held = lock(tmp_path)
    (tmp_path / "lock").write_text("999999999\n")  # no such process
    with pytest.raises(CannotServe, match="workers of a gateway that ended"):
        lock(tmp_path, patience=0.2)
    threading.Timer(0.3, os.close, (held,)).start()
    os.close(lock(tmp_path, patience=10))


def test_a_port_of_the_systems_choice_is_the_same_on_every_address() -> None:
    """`localhost` may be two addresses."""
    sockets = listen("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert sockets[0].getsockname()[1] > 0
        with socket.create_connection(sockets[0].getsockname()[:2]):
            pass  # open: the kernel accepts before anyone serves
    finally:
        for sock in sockets:
            sock.close()


def test_a_taken_port_says_how_to_choose_another() -> None:
    """The commonest failure of a first start."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CannotServe, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_fresh_folder_is_empty(tmp_path: Path) -> None:
    """Metrics of a former run would be counted again."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "old.db").write_text("x")
    assert list(fresh_folder(tmp_path / "m").iterdir()) == []


def test_the_first_key_is_handed_over_once(tmp_path: Path) -> None:
    """It is shown once and kept nowhere."""
    (tmp_path / "run").mkdir()
    leave_first_key(tmp_path, "sk-nh-x")
    assert mode(tmp_path / "run" / "first_key") == 0o600
    assert take_first_key(tmp_path) == "sk-nh-x"
    assert take_first_key(tmp_path) is None
