"""Options and fixtures for tests/ and experiments/. tests/README.md: what each folder proves."""

import logging
import os
from contextlib import ExitStack, closing, contextmanager

import pytest
from hypothesis import HealthCheck, settings

from tests import coverage_gate

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny, and two processes share the cores

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="write what happens into the stories of tests/scripts and tests/engine",
    )


SLOW_FIXTURES = {"executable", "metered_runs", "head"}
"""A browser, a Prometheus, and a Ray head that takes jobs: what uses them is slow."""


def pytest_configure(config):
    coverage_gate.add_to(config)


def pytest_report_header(config):
    return None if asks_for_slow(config) else "slow tests are left out: pytest -m slow runs them"


def asks_for_slow(config):
    return "slow" in config.getoption("markexpr")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests, unless they are asked for or their file is named.

    Of the two processes one has all tests that start Ray, one after the other, and the other has
    the rest.
    """
    for item in items:
        if SLOW_FIXTURES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)
    if not asks_for_slow(config):
        named = {(config.invocation_params.dir / each.split("::")[0]) for each in config.args}
        slow = [
            item for item in items if item.get_closest_marker("slow") and item.path not in named
        ]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    for item in items:
        if item.get_closest_marker("ray") or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))  # real processes: see tests/README.md
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif item.path.parent.name in ("report", "adapters"):
            # the records of reports are made once, the adapters' libraries imported once
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))


@contextmanager
def single_threaded():
    """For tiny models: on a busy machine torch's threads would wait for each other a hundred times
    as long.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread():
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def torch_of_one_thread():
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def metered_runs(tmp_path_factory):
    """A run of LagTuner and one that switches, on a cluster of their own, as a Prometheus saw them:
    ask for `history`.

    Ray's dashboard writes its own Grafana dashboards to the folder `watching`, beside raysync's.
    """
    from raysync.cli.dashboards import dashboards
    from tests.cluster.prometheus import RUNS, metered

    folder = tmp_path_factory.mktemp("prometheus")
    dashboards(folder / "watching")
    with metered(
        folder, *RUNS, RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR=str(folder / "watching/dashboards")
    ) as seen:
        yield seen


@pytest.fixture(scope="session")
def ray_cluster():
    """One private Ray cluster for all tests that need one; sessions join it and leave it as
    it was. Its worker processes are forked, where that can be, as those of a run's own are.
    """
    import ray

    from raysync.cluster.ray_private.fork_server import ForkServer, can_fork, forked_by

    with ExitStack() as running:
        with ExitStack() as starting:
            if can_fork():
                server = running.enter_context(closing(ForkServer()))
                starting.enter_context(forked_by(server))
            ray.init(
                address="local",
                num_cpus=12,
                num_gpus=0,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
            )
        yield ray
        ray.shutdown()
