"""`raysync replay`: feed a journal to a fresh machine."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from raysync.cli.app import RunFolder, app
from raysync.cli.console import console, errors
from raysync.core.replay import replay as replay_journal
from raysync.errors import ConfigError
from raysync.paradigms import rebuild
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.journal_file import JournalFile
from raysync.record.reader import legible
from raysync.record.storage import local_copy


@app.command()
def replay(
    record: RunFolder,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help=(
                "Import and run the paradigm that the run folder names, even if it does not come"
                " with raysync."
            ),
        ),
    ] = False,
) -> None:
    """Feed a run's journal to a fresh machine; every decision must come out the same."""
    journal = local_copy(record, without=[CHECKPOINTS]) / "journal.jsonl"
    if not journal.is_file():
        raise ConfigError(f"{record}: not a run folder (no journal.jsonl in it).")
    with legible(journal.parent), JournalFile(journal) as file:
        result = replay_journal(file, partial(rebuild, trust=trust))
    if result.difference:
        errors.print(f"Differs at {result.difference}", markup=False, highlight=False)
        raise typer.Exit(1)
    console.print(
        f"{result.events} events replayed, all {result.decisions} decisions identical.",
        highlight=False,
    )
    if not result.ended:
        console.print_plain(
            "The journal has no closing line: its run still runs or was killed, or the file was"
            " truncated."
        )
