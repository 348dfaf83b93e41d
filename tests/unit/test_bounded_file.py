"""Files that are read whole: plain ones within a bound, also when they are unpacked."""

import gzip
import os
import socket
from pathlib import Path

import pytest

from raysync.config.bounded_file import read_bytes, read_text
from raysync.errors import ConfigError

DATA = b"0123456789"


@pytest.mark.parametrize("name", ["x", "x.gz", "X.GZ"])
def test_up_to_the_bound_a_file_is_read_whole_and_one_byte_more_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(DATA) if name.lower().endswith("gz") else DATA)
    assert read_bytes(path, len(DATA)) == DATA
    assert read_text(path, len(DATA)) == DATA.decode()
    with pytest.raises(ConfigError) as raised:
        read_bytes(path, len(DATA) - 1)
    assert str(path) in str(raised.value)


def test_little_that_unpacks_to_much_takes_no_more_memory_than_the_bound(tmp_path):
    import tracemalloc

    path, bound = tmp_path / "x.gz", 1_000_000
    path.write_bytes(gzip.compress(bytes(50 * bound)))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            read_bytes(path, bound)
        assert tracemalloc.get_traced_memory()[1] < 10 * bound
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket", "nothing"])
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path, kind, monkeypatch):
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            monkeypatch.chdir(tmp_path)  # the path of a socket must be short
            listener.bind("it")
    with pytest.raises(ConfigError) as raised:
        read_bytes(path, 100)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 5000], ids=["nul", "half", "long"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(ConfigError):
        read_bytes(Path(name), 100)


@pytest.mark.parametrize(
    "data",
    [b"plain", gzip.compress(DATA)[:-9], gzip.compress(DATA)[:12]],
    ids=["plain", "without its end", "only begun"],
)
def test_what_cannot_be_unpacked_is_refused(tmp_path, data):
    path = tmp_path / "x.gz"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        read_bytes(path, 100)


def test_what_is_no_text_is_refused_and_a_mark_of_byte_order_is_left_out(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("\ufeffä".encode())
    assert read_text(path, 100) == "ä"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError):
        read_text(path, 100)
