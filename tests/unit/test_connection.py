"""How a private cluster is started, without Ray, and what is no cluster to join."""

import stat
import tempfile
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray

from raysync import config
from raysync.cluster import connection
from raysync.cluster.ray_private import cluster_start
from raysync.errors import ConfigError, RunFailed


@pytest.fixture
def no_ray(monkeypatch):
    """Puts a function into the place of `ray.init`; returns a list with an item for each end."""

    def put(init):
        monkeypatch.setattr(ray, "init", init)
        return ended

    ended = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("get", "put"):
        monkeypatch.setattr(ray, name, lambda *_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    # those of the cluster of other tests, which this process may have started
    monkeypatch.setattr(connection, "private_processes", lambda _: [])
    return put


@contextmanager
def opened(notify=print, **cluster):
    with closing(connection.Connection(notify, None)) as subject:
        subject.open(config.Cluster(**cluster), 1)
        yield


@pytest.fixture
def temporary(monkeypatch):
    """Have temporary folders in another one, whose path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:

        def within(name=""):
            own = Path(parent) / name
            own.mkdir(exist_ok=True)
            monkeypatch.setenv("TMPDIR", str(own))
            monkeypatch.setattr(tempfile, "tempdir", str(own))
            return own

        yield within


def test_a_ray_client_cannot_be_used(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(connection.client, "is_connected", lambda: True)
    with pytest.raises(ConfigError, match="ray job submit"), opened():
        pass


@pytest.mark.parametrize("starts", [[TimeoutError, None], [Exception, OSError]])
def test_a_private_cluster_that_does_not_start_is_started_once_more(no_ray, starts):
    """Of Ray's errors when it is too slow, some are no more than `Exception`."""
    coming, said, options = [each and each("too\nslow") for each in starts], [], []

    def init(**given):
        assert len(ended) == len(options), "the first cluster is still there"
        options.append(given)
        if error := coming.pop(0):
            raise error

    ended = no_ray(init)
    fails = pytest.raises(RunFailed, match="too slow") if starts[-1] else nullcontext()
    with fails, opened(said.append, fork_workers=False):
        pass
    assert options[0] == options[1]
    assert len([text for text in said if "too slow" in text]) == 1


def test_of_the_notices_of_ray_those_are_not_printed_that_are_told_here(monkeypatch, no_ray):
    """Where Ray itself prints them, in a thread that begins with the connection."""
    others = ["infeasible_resource_requests", None]
    coming = [kind and {"type": kind} for kind in (*cluster_start.SUPPRESSED, *others)]
    subscriber = Mock(poll=Mock(side_effect=[(b"", notice) for notice in coming]))
    worker, printed = Mock(gcs_error_subscriber=subscriber), []

    def listen(worker, stopped):
        worker.gcs_error_subscriber.subscribe()
        printed.extend(worker.gcs_error_subscriber.poll()[1] for _ in coming)

    monkeypatch.setattr(cluster_start.rays_worker, "listen_error_messages", listen)
    no_ray(lambda **_: cluster_start.rays_worker.listen_error_messages(worker, None))
    with opened(fork_workers=False):
        pass
    assert printed == [*(None for _ in cluster_start.SUPPRESSED), *coming[-2:]]
    subscriber.subscribe.assert_called_once()
    assert cluster_start.rays_worker.listen_error_messages is listen


@pytest.mark.parametrize(("name", "holds"), [("a", True), ("a" * 80, False), ("é", False)])
def test_a_temporary_folder_that_cannot_hold_sockets_is_not_used(temporary, no_ray, name, holds):
    own, options = temporary(name), {}
    no_ray(lambda **given: options.update(given))
    with opened():
        assert any(own.iterdir()) is holds  # the fork server's socket
    assert Path(options["_temp_dir"]).is_relative_to(own) is holds


def test_nobody_else_enters_the_folder_of_a_private_cluster(
    monkeypatch, temporary, no_ray, tmp_path
):
    """Ray opens its sockets to all; a folder that somebody else could enter is closed."""
    parent, folders = temporary(), []
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()

    def init(**given):
        folders.append(Path(given["_temp_dir"]).parent)
        token.write_text("secret")

    no_ray(init)
    for _ in range(2):
        with opened(fork_workers=False):
            pass
        assert folders[-1].is_relative_to(parent)
        assert stat.S_IMODE(folders[-1].stat().st_mode) == 0o700
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        folders[-1].chmod(0o777)
    assert folders[0] == folders[1]
