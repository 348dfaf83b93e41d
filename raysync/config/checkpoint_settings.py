"""When a run takes checkpoints, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from raysync.config.base import Strict


def folder_or_uri(value: object) -> Path | str:
    """Return a folder as a path, and a URI as text; raise `ValueError` otherwise."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"a folder, or a URI such as s3://bucket/runs; got {value!r}")
    if "://" in str(value):
        return str(value)
    # pyarrow takes a path with a colon for a URI, and a Path makes one slash of two
    if ":" in str(value).partition("/")[0]:
        raise ValueError(
            "a URI is text with ://, such as s3://bucket/runs; a folder has no colon in its"
            f" first name; got {str(value)!r}"
        )
    return Path(value)


def is_absolute(location: object) -> bool:
    """Whether a location is one machine's folder, not a URI, relative, or below the home."""
    return "://" not in str(location) and Path(str(location)).is_absolute()


class Checkpointing(Strict):
    """Take checkpoints, from which a lost run can go on: `raysync run --resume RUN`. Give
    `every_s`, `every_progress`, or both.
    """

    every_s: float | None = Field(
        None,
        ge=0.001,  # virtual time would stand still between shorter ones
        description=(
            "interval of checkpoints in seconds of the run; in virtual seconds on the virtual"
            " engine"
        ),
    )
    every_progress: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "interval of checkpoints as a share of the workload: 0.1 for ten, under every"
            " paradigm and on both engines"
        ),
    )
    keep: int = Field(
        2,
        ge=1,
        description=(
            "number of latest checkpoints to keep; if the newest is damaged, a run resumes from"
            " the one before"
        ),
    )
    output: Annotated[Path | str, BeforeValidator(folder_or_uri)] | None = Field(
        None,
        json_schema_extra={"type": "string"},
        description=(
            "a folder or URI for checkpoints; each run has a subfolder there, with the name of"
            " its run folder; default: `checkpoints` in the run folder"
        ),
    )

    @model_validator(mode="after")
    def _is_ever_due(self) -> Checkpointing:
        if self.every_s is None and self.every_progress is None:
            raise ValueError(
                "say when checkpoints are taken: every_s: 60, every_progress: 0.1, or both;"
                " without checkpoints, leave the block out"
            )
        return self
