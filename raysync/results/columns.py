"""The columns of tables, of each face, and how a number becomes text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import floor, isfinite, log10
from typing import Literal

from raysync.core.metrics import ACCURACY, PERPLEXITY
from raysync.results.collection import SHARED, Criteria
from raysync.results.statistics import Estimate

Form = Callable[[float], str]  # value -> its format specification
ComparedBy = Literal["ratio", "points", "difference"]


def seconds_form(value: float) -> str:
    """Format three digits: 0.0123, 1.23, 12.3, 1,234."""
    rounded = float(f"{value:.3g}")  # 99.99 is 100
    if rounded >= 100 or rounded <= 0:
        return ",.0f"
    return f".{min(9, 2 - floor(log10(rounded)))}f"


def percent_form(_: float) -> str:
    """Format percent with one decimal: 97.8%."""
    return ".1%"


def share_form(_: float) -> str:
    """Format percent without decimals: 42%."""
    return ".0%"


def perplexity_form(value: float) -> str:
    """Format two decimals; of an untrained model, the order of magnitude."""
    return ".2f" if value < 1000 else ".1e"


def digits_form(_: float) -> str:
    """Format four digits: 0.01234, 1.234, 1.234e+06."""
    return ".4g"


def plain_form(value: float) -> str:
    """Format 1.3, 12.3, 123."""
    return ",.0f" if abs(value) >= 100 else ".1f"


def count_form(value: float) -> str:
    """Format integers as they are, and means of them with one decimal."""
    return ",.0f" if value == round(value) else ",.1f"


# key of a column -> its value; None or no key: there is none
TableRow = Mapping[str, Estimate | float | str | None]


@dataclass(frozen=True)
class Column:
    """A column of a table, in a terminal, in Markdown and on a page."""

    key: str  # the key of its value in a row; of a run, that in `summary.json`
    heading: str
    form: Form = seconds_form
    about: str = ""  # a definition in a line
    unit: str = ""  # "": a fraction of 1, or of no unit
    # the heading in a terminal; "": the same; None: a terminal has no room for it
    narrow: str | None = ""
    interval: bool = False  # whether a terminal shows the interval as well
    # whether it is left out where all values are missing, or are printed as 0
    optional: bool = False
    shown_with: tuple[str, ...] = ()  # keys whose values decide that instead of its own
    rises: bool = False  # whether more is better
    # how paradigms differ: by ratio (times, perplexities), percentage points, or difference
    compared_by: ComparedBy = "ratio"

    @property
    def meaning(self) -> str:
        return (self.about or self.key) + (f" ({self.unit})" if self.unit else "")

    def show(self, value: float) -> str:
        return format(value, self.form(value))

    def cell(self, row: TableRow, *, brief: bool = False) -> str:
        """Format the value of a row: `3.42 ± 0.31 (2 of 3)`.

        Args:
            row: has the value.
            brief: whether to leave out an interval that a terminal does not show.
        """
        value = row.get(self.key)
        if isinstance(value, Estimate):
            if brief and not self.interval:
                value = replace(value, low=None)
            return with_interval(value, self.form)
        if value is None or isinstance(value, str):
            return value or "-"
        return self.show(value)


LEAST = 0.005  # a smaller share is printed as 0%


def shown(columns: Iterable[Column], rows: Iterable[TableRow]) -> list[Column]:
    """Return the columns that have something to show."""
    cells = [cell for row in rows for cell in row.items()]
    means = [(key, cell.mean if isinstance(cell, Estimate) else cell) for key, cell in cells]
    visible = {key for key, mean in means if isinstance(mean, int | float) and mean >= LEAST}
    return [
        column
        for column in columns
        if not column.optional or visible & set(column.shown_with or [column.key])
    ]


EQUAL_TIME = "at_equal_time"
OF_LAST = "of the last evaluation"
FINAL_ACCURACY = Column(
    "final_accuracy",
    "final accuracy",
    percent_form,
    OF_LAST,
    interval=True,
    rises=True,
    compared_by="points",
)
FINAL_PERPLEXITY = Column(
    "final_perplexity", "final perplexity", perplexity_form, OF_LAST, interval=True
)
CONVERGED_ACCURACY = Column(
    "converged_accuracy",
    "converged accuracy",
    percent_form,
    "at the first evaluation that ends five within 0.1% of each other and above chance",
    narrow=None,
    optional=True,
    rises=True,
    compared_by="points",
)
FINALS = {ACCURACY: FINAL_ACCURACY, PERPLEXITY: FINAL_PERPLEXITY}
WHOLE_WORK = Column("seconds", "seconds", seconds_form, "of the whole training", "s", interval=True)
THROUGHPUT = Column(
    "throughput_samples_per_s", "samples per s", seconds_form, "samples applied per second", "1/s"
)
COMPUTE = Column(
    "busy_fraction",
    "compute share",
    share_form,
    "of the workers' time, computing",
    narrow="com-\npute",
    optional=True,
    shown_with=("transfer_fraction", "server_fraction"),
)
TRANSFER = Column(
    "transfer_fraction",
    "transfer share",
    share_form,
    "of the workers' time, transferring weights and gradients",
    narrow="trans-\nfer",
    optional=True,
)
SERVER = Column(
    "server_fraction",
    "server share",
    share_form,
    "of the workers' time, waiting for the server's weights; on Ray part of the transfer",
    optional=True,
)
WAIT = Column(
    "wait_fraction", "wait share", share_form, "of the workers' time, between push and release"
)
STALENESS = Column(
    "staleness_mean",
    "staleness",
    plain_form,
    "between a gradient's weights and its update, mean of a run",
    "versions",
    narrow="stale-\nness",
)
STALENESS_MAX = Column(
    "staleness_max", "staleness max", count_form, "the largest of a run", "versions", narrow="\nmax"
)
LEAD_MAX = Column(
    "lead_max",
    "lead max",
    count_form,
    "ahead of the slowest active worker, at a release, largest of a run",
    "clocks",
)
DROPPED = Column("dropped", "dropped", count_form, "that were not applied", "pushes", optional=True)
SHARED_CORES = Column(
    SHARED,
    "shared cores",
    share_form,
    "of the time, in which other runs used the same cores: they measure each other",
    narrow=None,
    optional=True,
)
OF_LOSSES = (
    Column(
        "lost_workers",
        "lost workers",
        count_form,
        "that no fault of the file ended",
        narrow="lost",
        optional=True,
    ),
    Column(
        "worker_away_s",
        "workers away",
        seconds_form,
        "until others had joined, added up",
        "s",
        narrow=None,
        optional=True,
    ),
    Column(
        "lost_servers", "lost servers", count_form, "that were replaced", narrow=None, optional=True
    ),
    Column(
        "server_away_s",
        "servers away",
        seconds_form,
        "until others had recovered",
        "s",
        narrow=None,
        optional=True,
    ),
)
OF_EVERY_RUN = (
    THROUGHPUT,
    COMPUTE,
    TRANSFER,
    SERVER,
    WAIT,
    STALENESS,
    STALENESS_MAX,
    LEAD_MAX,
    DROPPED,
    SHARED_CORES,
    *OF_LOSSES,
)


def metric_text(metric: str, value: float) -> str:
    """Format an accuracy in percent, a perplexity with two decimals, others with four digits."""
    forms = {ACCURACY.name: percent_form, PERPLEXITY.name: perplexity_form}
    return format(value, forms.get(metric, digits_form)(value))


def target_text(criteria: Criteria) -> str:
    """Return the target in words, such as "95.0%", "loss 1.8", "f1 0.9", or ""."""
    target = criteria.target
    if target is None:
        return ""
    if target.metric == ACCURACY.name:
        return metric_text(target.metric, target.value)
    return f"{target.metric} {target.value:g}"


def margin_text(measure: Column, margin: float) -> str:
    """Return a margin of equally good models in words: "0.5 points", "2%"."""
    if measure.compared_by == "points":
        return f"{100 * margin:.3g} point{'' if margin == 0.01 else 's'}"
    return f"{100 * margin:.3g}%" if measure.compared_by == "ratio" else f"{margin:.3g}"


def final_measure(criteria: Criteria) -> Column | None:
    """Return the measure of the final model; None: none was trained."""
    metric = criteria.metric
    if metric is None:
        return None
    column = FINALS.get(metric) or Column(
        f"final_{metric.name}",
        f"final {metric.name.replace('_', ' ')}",
        digits_form,
        OF_LAST,
        interval=True,
        rises=metric.rises,
        compared_by="difference",
    )
    if criteria.last > 1:
        column = replace(column, about=f"mean of the last {criteria.last} evaluations")
    key = criteria.final_key
    if not criteria.tested or key is None:
        return column
    return replace(
        column,
        key=key,
        heading=column.heading.replace("final", "test"),
        about="of the last model on the test set; all else is of the validation set",
    )


def validation_measure(criteria: Criteria) -> list[Column]:
    """Return the measure of the last evaluation where another one judges the model."""
    final = final_measure(replace(criteria, tested=False))
    if final is None or not criteria.tested:
        return []
    heading = final.heading.replace("final", "validation")
    return [replace(final, heading=heading, narrow=None, interval=False)]


def at_equal_time(final: Column) -> Column:
    """Return the measure of models at equal time."""
    return replace(
        final,
        key=EQUAL_TIME,
        heading=final.heading.replace("final ", "") + " at equal time",
        about=(
            f"{final.about}, before the first run of the same seed had done its work; a learning"
            " rate that falls with progress is still higher then"
        ),
        narrow=None,
        interval=False,
        optional=True,
    )


def time_measure(criteria: Criteria) -> Column:
    """Return the time to the target or, without one, of the whole work."""
    if criteria.target is None:
        return WHOLE_WORK
    target = target_text(criteria)
    return Column(
        criteria.time_key,
        f"s to {target}",
        seconds_form,
        "until the first evaluation that met the target was published",
        "s",
        narrow=f"s to\n{target}",
        interval=True,
    )


def measures_for(criteria: Criteria) -> list[Column]:
    """Return a table's columns for a scenario, in order."""
    final, time = final_measure(criteria), time_measure(criteria)
    timed = [time] if time is WHOLE_WORK else [time, replace(WHOLE_WORK, narrow=None)]
    converged = [CONVERGED_ACCURACY] if criteria.metric == ACCURACY else []
    validation = validation_measure(criteria)
    models = [] if final is None else [final, *validation, at_equal_time([final, *validation][-1])]
    return [*models, *timed, *converged, *OF_EVERY_RUN]


def published_measure(key: str) -> Column:
    """Return the measure of a key that tables have only for a published value."""
    if key.endswith("_accuracy"):
        form: Form = percent_form
    elif key.endswith(("_s", "seconds")):
        form = seconds_form
    elif key.endswith("_max"):
        form = count_form
    elif key.startswith(("final_", "best_")) and not key.endswith(("_loss", "_perplexity")):
        form = digits_form
    else:
        form = plain_form
    return Column(key, key.replace("_", " "), form)


def ratio_text(value: float) -> str:
    """Format three digits: 0.345, 1.23, 12.3, 1,234."""
    return format(value, seconds_form(value))


def with_interval(value: Estimate, form: Form) -> str:
    """Return `3.42 ± 0.31 (2 of 3)`: mean, half the interval, and repeats with a value if not all.

    Both numbers have the mean's digits; an interval below these is omitted.
    """
    mean, low, high = value.mean, value.low, value.high
    if mean is None or not isfinite(mean):
        return f"none of {value.total}" if value.total > 1 else "-"
    digits = form(mean)
    text = format(mean, digits)
    if low is not None and high is not None and isfinite(high - low):
        half = format((high - low) / 2, digits)
        text += f" ± {half}" if half != format(0.0, digits) else ""
    return text if value.complete else f"{text} ({value.count} of {value.total})"
