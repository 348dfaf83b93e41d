"""Kill and freeze the processes of a run on Ray, and check what it makes of that.

python -m tests.chaos FILE --out FOLDER --faults worker,server,driver --set checkpoint.every_s=5
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from raysync import config
from raysync.cli import main as run_commands
from raysync.cli.app import File, Settings
from raysync.cli.console import console, say
from raysync.errors import ConfigError, unknown_name
from tests.chaos.schedule import PROCESSES, SIGNALS, TARGETS, Strike, schedule

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def chaos(
    file: File,
    out: Annotated[Path, typer.Option(help="A new folder for records, logs and the result.")],
    faults: Annotated[
        str,
        typer.Option(
            help=f"What is struck, with commas: {', '.join(TARGETS)}. driver: the command and all"
            " below it; node: one of several that are started on this machine for it."
        ),
    ] = ",".join(PROCESSES),
    kills: Annotated[int, typer.Option(min=1, help="How many faults.")] = 10,
    every: Annotated[float, typer.Option(help="Mean seconds between two faults.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of which the faults are drawn.")] = 0,
    signals: Annotated[
        str, typer.Option(help="kill: a process dies; stop: it freezes, as a deadline shows.")
    ] = "kill",
    settings: Settings = [],  # noqa: B006 - typer copies it
) -> None:
    """Kill or freeze processes of a run at random, and check that it survives; it needs
    `checkpoint:`. The experiment runs twice, once without faults. Exit status 1: a check failed.
    """
    targets = _names("--faults", faults, TARGETS)
    strikes = schedule(targets, _names("--signals", signals, SIGNALS), kills, every, seed)
    strike(file, out, strikes, settings)


def strike(file: Path, out: Path, strikes: Sequence[Strike], settings: Sequence[str] = ()) -> None:
    """Run an experiment twice, once with those faults, and judge it.

    Raises:
        ConfigError: it cannot survive any, or does not finish without them.
        Exit: an oracle has found something.
    """
    experiment = config.load(file, settings)
    if experiment.engine != "ray" or experiment.checkpoint is None:
        raise ConfigError("chaos: engine: ray and checkpoints are needed (checkpoint.every_s=5).")
    from tests.chaos import trial
    from tests.chaos.nodes import nodes_for

    with ExitStack() as cluster:
        has_nodes = any(each.target == "node" for each in strikes)
        nodes = cluster.enter_context(nodes_for(experiment)) if has_nodes else None
        say("First the run without faults ...")
        without = trial.Trial(file, settings, [], out / "undisturbed", say, nodes).run()
        if without.status:
            raise ConfigError(f"{file}: even without faults it failed; its log is in {out}.")
        say(f"It took {without.wall_s:.0f} s. Now with {len(strikes)} faults ...")
        struck = trial.Trial(file, settings, strikes, out / "struck", say, nodes).run()
    verdicts = trial.judge(struck, without)
    result = {
        "targets": trial.counts(struck),
        "lost_with_nodes": dict(struck.held),
        "figures": trial.figures(struck, without),
        "oracles": {oracle: failure or "ok" for oracle, failure in verdicts.items()},
        "pending": len(struck.pending),  # the run was over before
    }
    text = json.dumps(result, indent=1)
    (out / "chaos.json").write_text(text + "\n", encoding="utf-8")
    console.print_plain(text)
    if any(verdicts.values()):
        raise typer.Exit(1)


def _names(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in allowed:
            raise unknown_name("name", name, allowed, where=option, listed=allowed)
    return names


if __name__ == "__main__":
    run_commands(app)
