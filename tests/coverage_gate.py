"""Every branch of `raysync.core` and `raysync.paradigms` is executed by an example: measured while
the examples run, not in a run of its own.

The examples are the tests of `EXAMPLES` that Hypothesis draws nothing for: what is covered is no
matter of luck, and tracing them takes some seconds. The gate acts when all of them were selected
and have passed; a run of one file or of `-k` a few is not judged.
"""

import sys
from pathlib import Path
from runpy import run_path

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).parents[1]
EXAMPLES = tuple(
    ROOT / "tests" / path
    for path in (
        "unit/test_ids.py",
        "unit/test_structs.py",
        "unit/test_machine.py",
        "unit/test_make.py",
        "unit/test_labels.py",
        "unit/test_journal.py",
        "unit/test_metric_names.py",
        "unit/test_cuts.py",
        "unit/test_batch_shares.py",
        "paper",
        "scripts",
    )
)
PURE = (ROOT / "raysync/core", ROOT / "raysync/paradigms")
IS_MEASURED = sys.version_info >= (3, 11, 7)
"""CPython 3.11.2 tells tracers of a line that is not executed, where a case of a match ends with an
if; 3.11.7 does not."""


def is_example(path):
    return any(path == example or example in path.parents for example in EXAMPLES)


def selects_all_examples(config):
    """Say whether what the command line names contains all the examples."""
    named = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
    return all(
        any(example == path or path in example.parents for path in named) for example in EXAMPLES
    )


class CoverageGate:
    """Measures in each process of pytest-xdist, and judges in the one that started them."""

    def __init__(self, config):
        self._is_worker = hasattr(config, "workerinput")
        self._coverage = Coverage(
            data_file=None,
            config_file=str(ROOT / "setup.cfg"),
            source=[str(folder) for folder in PURE],
        )
        self._is_partial = False
        self._missing = ""
        if self._is_worker or not config.getoption("numprocesses", None):
            self._measure_definitions()

    def _measure_definitions(self):
        """Execute the modules once more, apart: each line that defines something was executed when
        they were imported, which may have been before.
        """
        self._coverage.start()
        for folder in PURE:
            for path in sorted(folder.glob("*.py")):
                run_path(str(path), run_name=".".join(path.relative_to(ROOT).with_suffix("").parts))
        self._coverage.stop()

    def pytest_deselected(self, items):
        self._is_partial = self._is_partial or any(is_example(item.path) for item in items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if not is_example(item.path) or getattr(item.function, "is_hypothesis_test", False):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    def pytest_testnodedown(self, node):
        """Add what a process of pytest-xdist has measured."""
        output = getattr(node, "workeroutput", {})
        self._is_partial = self._is_partial or output.get("examples_are_partial", True)
        if measured := output.get("examples_covered"):
            data = CoverageData(no_disk=True)
            data.loads(measured)
            self._coverage.get_data().update(data)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        if self._is_worker:
            session.config.workeroutput["examples_are_partial"] = self._is_partial
            session.config.workeroutput["examples_covered"] = self._coverage.get_data().dumps()
        elif exitstatus == pytest.ExitCode.OK and not self._is_partial:
            self._judge(session)

    def _judge(self, session):
        from io import StringIO

        report = StringIO()
        percent = self._coverage.report(file=report, show_missing=True, skip_covered=True)
        if percent < 100:
            self._missing = report.getvalue()
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._missing:
            terminalreporter.section("branches of the pure core that no example executes", red=True)
            terminalreporter.write_line(self._missing)
            terminalreporter.write_line("FAILED: the exit status is 1, whatever the tests say.")


def add_to(config):
    """Measure this run, if it is to be judged."""
    if (
        IS_MEASURED
        and selects_all_examples(config)
        and not config.getoption("keyword")
        and not config.getoption("collectonly")
        and not getattr(config.option, "cov_source", None)
    ):
        config.pluginmanager.register(CoverageGate(config), "coverage-gate")
