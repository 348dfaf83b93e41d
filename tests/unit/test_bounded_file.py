"""Files that are read whole: plain ones within a bound, also when they are unpacked."""

import gzip
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from raysync.config.bounded_file import read_bytes, read_text
from raysync.errors import ConfigError
from tests.builders.messages import naming

DATA = b"0123456789"
PACKED = gzip.compress(DATA)


@pytest.mark.parametrize(
    ("name", "data"),
    [("x", DATA), ("x.gz", PACKED), ("X.GZ", PACKED)],
    ids=["plain", "packed", "in capitals"],
)
def test_up_to_the_bound_a_file_is_read_whole_and_one_byte_more_is_refused(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert read_bytes(path, len(DATA)) == DATA
    assert read_text(path, len(DATA)) == DATA.decode()
    with pytest.raises(ConfigError, match=naming(str(path))):
        read_bytes(path, len(DATA) - 1)


def test_little_that_unpacks_to_much_takes_no_more_memory_than_the_bound(tmp_path):
    path, bound = tmp_path / "x.gz", 100_000
    path.write_bytes(gzip.compress(bytes(50 * bound)))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            read_bytes(path, bound)
        assert tracemalloc.get_traced_memory()[1] < 10 * bound
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
        lambda path: None,
    ],
    ids=["pipe", "folder", "device", "socket", "nothing"],
)
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path, put):
    put(tmp_path / "it")
    with pytest.raises(ConfigError, match=naming(f"{tmp_path}/it")):
        read_bytes(tmp_path / "it", 100)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 5000], ids=["nul", "half", "long"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(ConfigError):
        read_bytes(Path(name), 100)


@pytest.mark.parametrize(
    ("name", "data"),
    [("x.gz", b"plain"), ("x.gz", PACKED[:-9]), ("x.gz", PACKED[:12]), ("x", b"\xff")],
    ids=["not packed", "without its end", "only begun", "no text"],
)
def test_what_cannot_be_unpacked_or_decoded_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError):
        read_text(tmp_path / name, 100)


def test_a_mark_of_byte_order_is_left_out(tmp_path):
    (tmp_path / "x").write_bytes("\ufeffä".encode())
    assert read_text(tmp_path / "x", 100) == "ä"
