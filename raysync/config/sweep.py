"""The settings of a sweep, and a published table to compare it with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysync.config.base import Choice, Strict
from raysync.config.goal import Goals


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Values = Annotated[tuple[Any, ...], BeforeValidator(_as_list), Field(min_length=1)]


class Distribution(Strict):
    """A distribution of `ray.tune` for a setting: `{loguniform: [0.001, 0.1]}`."""

    name: Literal[
        "uniform",
        "quniform",
        "loguniform",
        "qloguniform",
        "randn",
        "randint",
        "lograndint",
        "choice",
    ] = Field(description="its name in ray.tune")
    arguments: tuple[Any, ...] = Field(
        description="arguments of the function of ray.tune, in order"
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) == 1 and "name" not in value:
            [(name, arguments)] = value.items()
            listed = list(arguments) if isinstance(arguments, list | tuple) else [arguments]
            return {"name": name, "arguments": [listed] if name == "choice" else listed}
        return value


class Sweep(Strict):
    """The trials of `raysync sweep`: every combination of the grid, or a searcher's choices."""

    grid: dict[str, Values] = Field(
        default_factory=dict,
        description=(
            "setting -> its values; settings are written as for "
            "--set: `update.lr`, `workers.*.speed`, `paradigm`"
        ),
    )
    exclude: tuple[dict[str, Values], ...] = Field(
        (),
        description=(
            "combinations to leave out: those that match all settings of an entry; "
            "`paradigm: ssp` matches any parameters"
        ),
    )
    sample: dict[str, Distribution] = Field(
        default_factory=dict, description="setting -> the distribution that it is drawn from"
    )
    samples: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description=(
            "draws for each combination of the grid; with `search`, its trials, before the best"
            " settings run with further seeds"
        ),
    )
    search: Choice | None = Field(
        None, description="a searcher of ray.tune by name, with its parameters: optuna, ..."
    )
    scheduler: Choice | None = Field(
        None, description="a scheduler of ray.tune by name, with its parameters: asha, ..."
    )
    metric: str | None = Field(
        None,
        description=(
            "the metric, of those that trials report, for searcher and scheduler; default: the"
            " primary metric of the task"
        ),
    )
    mode: Literal["max", "min"] | None = Field(
        None,
        description=(
            "max: a larger metric is better; min: a smaller one; default: the direction of the"
            " primary metric, of accuracy, loss and perplexity"
        ),
    )
    stop: Goals = Field(
        (),
        description=(
            "a trial ends at the first evaluation at which a metric has a value: `{accuracy: 0.9}`,"
            " `{loss: 0.4}`, `{metric: f1, value: 0.8, mode: max}`; the same as `stop.when`"
        ),
    )
    time_budget_s: float | None = Field(
        None,
        gt=0,
        description=(
            "real seconds after which all trials are stopped: for a search without an end of its"
            " own, on machines that are paid by the hour"
        ),
    )
    concurrent: int | None = Field(
        None,
        ge=1,
        description=(
            "most trials at once; default: as many as the cluster holds, on Ray without sharing"
            " cores: those measure each other"
        ),
    )

    @model_validator(mode="after")
    def _varies_something(self) -> Sweep:
        if not self.grid and not self.sample:
            raise ValueError(
                "nothing is varied; give `grid` (setting -> list of values) or `sample`"
            )
        if twice := sorted(set(self.grid) & set(self.sample)):
            raise ValueError(f"{twice[0]} is both in grid and in sample")
        if self.search is not None and self.exclude:
            raise ValueError(
                "exclude leaves out combinations of a grid; a searcher makes its own; leave one of"
                " them out"
            )
        return self


class Published(Strict):
    """A published table; reports show it beside the measured one."""

    source: str = Field(description="paper and table")
    note: str = Field("", description="how its setting differs")
    relative_to: str | None = Field(
        None, description="a row: values are compared as ratios to the values of this row"
    )
    rows: dict[str, dict[str, float | None]] = Field(
        description=(
            "label of the paradigm in tables, `ssp(staleness=3)` -> key of summary.json ->"
            " published value; null: not reached"
        )
    )

    @model_validator(mode="after")
    def _has_row_of_ratios(self) -> Published:
        if self.relative_to is not None and self.relative_to not in self.rows:
            raise ValueError(
                f"relative_to: {self.relative_to!r} is no row; the rows are {', '.join(self.rows)}"
            )
        return self
