"""The command line: one file a group of commands."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

import typer

from raysync.cli import (  # noqa: F401 - each registers its commands
    advise_command,
    calibrate_command,
    compare_command,
    dashboards,
    export_command,
    listing,
    replay_command,
    reports,
    run_command,
    sweep_command,
    switch_search_command,
    watch,
    whatif_command,
)
from raysync.cli.app import app
from raysync.cli.console import console, errors, say
from raysync.cli.stop_signals import stoppable
from raysync.config.secret_masking import masked
from raysync.errors import ConfigError, RunFailed

# the order in `raysync --help`; typer lists commands in the order of their imports
ORDER = (
    "run",
    "compare",
    "sweep",
    "switch-search",
    "report",
    "advise",
    "whatif",
    "export",
    "dashboards",
    "calibrate",
    "list",
    "watch",
    "replay",
)

app.registered_commands.sort(
    key=lambda command: ORDER.index(command.name or getattr(command.callback, "__name__", ""))
)

__all__ = ["app", "console", "errors", "main"]


def main(commands: typer.Typer = app) -> None:
    """Run the command line; a user's mistake is reported without a traceback, exit status 2."""
    try:
        _main(commands)
    except SystemExit as end:
        clock = sys.modules.get("raysync.cluster.clock")
        if clock is not None and clock.is_stuck():
            # Ray's threads would crash the process at its end, and lose the run's exit status.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _main(commands: typer.Typer) -> None:
    sys.path.insert(0, str(Path.cwd()))  # for the user's own package.module:Name
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know only ASCII
    try:
        with stoppable():
            commands()
    except ConfigError as error:
        say(masked(f"raysync: {error}"))
        sys.exit(2)
    except RunFailed as error:
        say(masked(f"raysync: the run failed: {error}"))
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        say("raysync: torch is not installed: pip install torch (a CPU build is enough).")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
