"""The command line: `raysync run`, `compare`, `sweep`, `switch-search`, `report`, `dashboards`,
`list` and more.

One file a group of commands.
"""

from __future__ import annotations

import sys
from pathlib import Path

from raysync.cli import dashboards, listing, reports, sweeps, switches, train, watch  # noqa: F401 - their commands
from raysync.cli.app import app, console, errors
from raysync.cli.stopping import stoppable
from raysync.config.masking import masked
from raysync.errors import ConfigError, RunFailed

ORDER = (
    "run",
    "compare",
    "sweep",
    "switch-search",
    "report",
    "dashboards",
    "calibrate",
    "list",
    "watch",
    "replay",
)
"""Of the commands in `raysync --help`, and in README.md; typer's is that in which their files are
imported."""

app.registered_commands.sort(
    key=lambda command: ORDER.index(command.name or getattr(command.callback, "__name__", ""))
)

__all__ = ["app", "console", "errors", "main"]


def main() -> None:
    """Entry point: a user's mistake is answered without a traceback, exit status 2."""
    sys.path.insert(0, str(Path.cwd()))  # the user's own package.module:Name
    try:
        with stoppable():
            app()
    except ConfigError as error:
        _say(f"raysync: {error}")
        sys.exit(2)
    except RunFailed as error:
        _say(f"raysync: the run failed: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(text: str) -> None:
    errors.print(masked(text), markup=False, highlight=False, soft_wrap=True)
