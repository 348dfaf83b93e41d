"""Kill and freeze the processes of a run on Ray, and check what it makes of that.

python -m tests.chaos FILE --out FOLDER --faults worker,server,driver --set checkpoint.every_s=5
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from raysync import config
from raysync.cli import main as run_commands
from raysync.cli.app import File, Settings
from raysync.cli.console import console, say
from raysync.errors import ConfigError
from tests.chaos.schedule import PROCESSES, SIGNALS, TARGETS, Strike, names_in, schedule

if TYPE_CHECKING:
    from raysync.config import Experiment
    from tests.chaos.nodes import Nodes
    from tests.chaos.oracles import Verdict
    from tests.chaos.trial import Outcome

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
UNDISTURBED, STRUCK, RESULT = "undisturbed", "struck", "chaos.json"
"""Names in the folder of the results."""


@app.command()
def chaos(
    file: File,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="A new folder for records, logs and the result."
        ),
    ],
    faults: Annotated[
        str,
        typer.Option(
            help=f"What is struck, with commas: {', '.join(TARGETS)}. driver: the command and all"
            " below it; disk: it is full until the command has ended; node: one of several that are"
            " started on this machine for it; store: the object stores of all of these are full."
        ),
    ] = ",".join(PROCESSES),
    kills: Annotated[int, typer.Option(help="How many faults.")] = 10,
    every: Annotated[float, typer.Option(help="Mean seconds between two faults.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of which the faults are drawn.")] = 0,
    signals: Annotated[
        str,
        typer.Option(
            help="kill: a process dies; stop: it freezes, as a deadline shows. A driver is killed."
        ),
    ] = "kill",
    tolerance: Annotated[
        float,
        typer.Option(
            help="Share by which the final metric may differ where models cannot be bit-equal."
        ),
    ] = 0.1,
    settings: Settings = [],  # noqa: B006 - typer copies it
) -> None:
    """Kill or freeze processes of a run at random, and check that it survives; it needs
    `checkpoint:`. The experiment runs twice, once without faults. Exit status 1: a check failed.
    """
    targets = names_in("--faults", faults, TARGETS)
    strikes = schedule(targets, names_in("--signals", signals, SIGNALS), kills, every, seed)
    if not tolerance >= 0:
        raise ConfigError(f"--tolerance {tolerance:g}: a share from 0 is needed.")
    if out.exists():
        raise ConfigError(f"--out {out}: exists already; a new folder is needed.")
    from tests.chaos import trial
    from tests.chaos.processes import address_of, can_fill_disks

    if "disk" in targets and not can_fill_disks():
        raise ConfigError("--faults disk: only Linux can fill the disk of one process.")
    experiment = config.load(file, settings)
    trial.check(experiment)
    environment = dict(os.environ)
    with ExitStack() as cluster:
        nodes = None
        if own := [target for target in ("node", "store") if target in targets]:
            nodes = cluster.enter_context(_nodes(experiment, own[-1]))
        address = nodes.address if nodes else address_of(experiment.cluster.address, environment)

        def trial_of(name: str, planned: Sequence[Strike]) -> Outcome:
            folder = out / name
            return trial.Trial(
                file, settings, planned, folder, environment, address, say, nodes
            ).run()

        say("First the run without faults ...")
        undisturbed = trial_of(UNDISTURBED, [])
        if undisturbed.status:
            raise ConfigError(
                f"{file}: even without faults the run ended with status {undisturbed.status}; its"
                f" log: {out / UNDISTURBED / trial.LOG}"
            )
        say(f"It took {undisturbed.wall_s:.0f} s. Now with {kills} faults ...")
        struck = trial_of(STRUCK, strikes)
    verdicts = trial.judge(struck, undisturbed, tolerance)
    figures = trial.figures(struck, undisturbed)
    _print(struck, figures, verdicts)
    _write(out / RESULT, struck, figures, verdicts)
    if any(verdict.failure for verdict in verdicts):
        raise typer.Exit(1)


def _nodes(experiment: Experiment, target: str) -> Nodes:
    """Start a cluster whose nodes can be lost, or their object stores filled.

    Raises:
        ConfigError: the experiment names a cluster, whose nodes are left alone.
    """
    from tests.chaos.nodes import Nodes

    address = experiment.cluster.address
    if address not in ("auto", "local"):
        raise ConfigError(
            f"--faults {target}: cluster.address: {address!r}: the nodes of a cluster that is there"
            " are left alone; with address: auto or local, nodes are started on this machine."
        )
    say("Starting a cluster of several nodes on this machine ...")
    return Nodes(experiment, spills=target != "store")


def _counts(struck: Outcome) -> list[dict[str, Any]]:
    """Return a row for each kind of process: how often it was struck, and survived."""
    made = Counter(strike.target for strike in struck.struck)
    return [
        {
            "target": target,
            "faults": made[target],
            "survived": made[target] - struck.fatal[target],
            "spared": struck.spared[target],
        }
        for target in TARGETS
        if made[target] or struck.spared[target]
    ]


def _print(struck: Outcome, figures: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    for rows in (_counts(struck), [figures]):
        table = Table(box=None, pad_edge=False)
        for name in rows[0] if rows else ():
            table.add_column(
                name.replace("_", "\n"), justify="left" if name == "target" else "right"
            )
        for row in rows:
            table.add_row(
                *(escape(f"{value:,}" if value != str(value) else value) for value in row.values())
            )
        console.print(table)
    if struck.held:
        held = ", ".join(f"{count} {kind}" for kind, count in sorted(struck.held.items()))
        console.print_plain(f"Lost with nodes: {held}.")
    if struck.pending:
        console.print_plain(
            f"{struck.pending} faults did not come: the run was over before. Give it a larger"
            " workload, or a shorter --every."
        )
    for verdict in verdicts:
        mark = "FAILED" if verdict.failure else "ok"
        more = verdict.failure or verdict.note
        console.print_plain(f"{mark:6}  {verdict.oracle}" + (f": {more}" if more else ""))
    console.print_plain(f"Records and logs: {struck.folder.parent}")


def _write(
    file: Path, struck: Outcome, figures: dict[str, Any], verdicts: Sequence[Verdict]
) -> None:
    result = {
        "targets": _counts(struck),
        "lost_with_nodes": dict(sorted(struck.held.items())),
        "figures": figures,
        "oracles": {verdict.oracle: verdict.failure or "ok" for verdict in verdicts},
        "pending": struck.pending,
    }
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command; see `raysync.cli.main`."""
    run_commands(app)


if __name__ == "__main__":
    main()
