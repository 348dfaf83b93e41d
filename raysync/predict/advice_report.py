"""What `raysync advise` has found: in words, in tables, as JSON; and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raysync.predict.advise import Advice, Changed
from raysync.predict.candidates import Candidate
from raysync.predict.figures import figures_of_advice
from raysync.predict.lone_worker import lone_worker_text
from raysync.predict.snippets import snippets
from raysync.results.columns import (
    WHOLE_WORK,
    count_form,
    percent_form,
    plain_form,
    ratio_text,
    share_form,
    with_interval,
)
from raysync.results.ranking import Standings
from raysync.results.report_faces import Answer, Table
from raysync.results.sentences import lead_text
from raysync.results.statistics import CONFIDENCE
from raysync.results.tables import Column, distance_column
from raysync.training.evaluation import OF_THE_TEST_SET

SCHEMA = 1
ADVISED, ADVISED_MODEL, PAGE, MARKDOWN, JSON = (
    "advised.yaml",
    "advised-final.yaml",
    "advice.html",
    "advice.md",
    "advice.json",
)
MOST_BATCHES = 8
"""The most batch sizes that a cell shows."""
LEGEND = (
    "±: half of the 95% interval of the mean over seeds. All have the same seeds, so the same"
    " batches, jitter and faults, and are compared in pairs."
)


def answer_of(advice: Advice) -> Answer:
    experiment = advice.world.experiment
    return Answer(
        "advise",
        name=f"Advice for {experiment.name}",
        title=f"{experiment.subject}, {experiment.worker_count} workers",
        question="What to run",
        sentences=sentences(advice),
        tables=[_candidate_table(advice), *([_change_table(advice)] if advice.changed else [])],
        legend=LEGEND,
        labels=list(advice.contenders),
        figures=figures_of_advice(advice),
        basis=list(basis(advice)),
    )


def _candidate_table(advice: Advice) -> Table:
    columns = []
    for standings in (advice.time, advice.final):
        if standings is not None:
            columns += [_value_column(standings), distance_column(standings)]
    columns += [
        Column("wait share", "of the workers' time, between push and release",
               lambda label: _mean_text(advice, label, "wait_fraction", share_form)),
        Column("staleness", "model versions between a gradient's weights and its update, mean",
               lambda label: _mean_text(advice, label, "staleness_mean", plain_form)),
        Column("max", "the largest staleness",
               lambda label: _mean_text(advice, label, "staleness_max", count_form)),
        Column("lead max", "the largest lead at a release, in clocks",
               lambda label: _mean_text(advice, label, "lead_max", count_form)),
    ]  # fmt: skip
    if any(advice.mean(label, "dropped") for label in advice.contenders):
        columns.append(
            Column("dropped", "pushes that were computed and not applied",
                   lambda label: _mean_text(advice, label, "dropped", count_form))
        )  # fmt: skip
    given = advice.world.plan.experiment.batch_sizes
    if any(advice.shares(label) != given for label in advice.contenders):
        columns.append(
            Column("batches", "samples of an iteration at the end of the run, worker by worker",
                   lambda label: _batches(advice.shares(label)))
        )  # fmt: skip
    labels = [each.paradigm for each in advice.time.ranked]
    return Table("candidate", columns, dict(zip(labels, labels, strict=True)))


def _value_column(standings: Standings) -> Column:
    measure = standings.measure
    values = {each.paradigm: each.value for each in standings.ranked}

    def show(label: str) -> str:
        one = values[label]
        return with_interval(one.mean, one.low, one.high, one.count, one.total, measure.form)

    return Column(measure.heading, measure.about, show)


def _mean_text(advice: Advice, label: str, key: str, form: Callable[[float], str]) -> str:
    value = advice.mean(label, key)
    return "-" if value is None else format(value, form(value))


def _batches(shares: Mapping[str, int]) -> str:
    sizes = list(map(str, shares.values()))
    return " ".join(sizes[:MOST_BATCHES]) + (" ..." if len(sizes) > MOST_BATCHES else "")


def _change_table(advice: Advice) -> Table:
    best, show = advice.best.label, advice.time.measure.show
    now_s = advice.time.first.value.mean or 0.0

    def then(changed: Changed) -> str:
        stays = best in alike(changed.standings)
        return best if stays else changed.standings.first.paradigm

    columns = [
        Column("best", "the present best candidate, unless another would be clearly better", then),
        Column(
            advice.time.measure.heading,
            "its predicted seconds",
            lambda changed: show(_predicted_s(changed.standings, then(changed))),
        ),
        Column(
            "× as fast",
            "speed-up of the present best candidate by the change",
            lambda changed: ratio_text(now_s / changed.todays_best_s),
        ),
    ]
    return Table("change", columns, {each.change: each for each in advice.changed})


def _predicted_s(standings: Standings, label: str) -> float:
    return next(each.value.mean or 0.0 for each in standings.ranked if each.paradigm == label)


def alike(standings: Standings) -> list[str]:
    """Return the labels that cannot be told apart from the best, with it."""
    return [standings.first.paradigm, *standings.leader.doubtful]


def sentences(advice: Advice) -> list[str]:
    """Return what to run for each of the two goals, and how sure that is."""
    target = advice.world.plan.experiment.target
    measured = advice.time.measure is not WHOLE_WORK and target is not None
    goal = f"reach {target.words}" if measured and target else "finish its work"
    best = advice.best.label
    said = [lead_text(advice.time, f"is the first to {goal}", " s")]
    if alone := lone_worker_text(best, advice.applied(best)):
        said.append(alone)
    if advice.final is None:
        return said
    if advice.final.first.value.mean is None:
        return [*said, "No run has a final model."]
    primary = advice.world.plan.primary
    said.append(lead_text(advice.final, f"has the best final {primary.name} on the validation set"))
    value = advice.mean(advice.best.label, OF_THE_TEST_SET)
    if value is not None:
        text = format(value, percent_form(value)) if primary.name == "accuracy" else f"{value:.4g}"
        said.append(
            f"The final {primary.name} of {advice.best.label} on the test set is {text}; nothing"
            " was chosen on that set."
        )
    return said


def basis(advice: Advice) -> Iterator[str]:
    """Yield the grounds and limits of the answer."""
    yield from advice.remarks
    count = len(advice.contenders)
    seeds = ", ".join(map(str, advice.seeds))
    yield (
        f"{len(advice.timed)} candidates were timed on the virtual clock;"
        f" {count} went on to the comparison, with seed{'s' * (len(advice.seeds) > 1)} {seeds}."
        f" It took {advice.used_s / 60:.2g} of {advice.options.budget_s / 60:g} minutes."
    )
    if advice.tuning is not None:
        rates = ", ".join(f"{rate:g}" for rate in sorted(advice.tuning.rates))
        yield (
            f"Learning rates: the same for each finalist ({rates or 'the rate of the file'}),"
            " tried on a separate seed; the best rate for the target, and the best rate for the"
            " final metric, both on the validation set."
        )
    else:
        yield "Nothing was trained: what staleness and dropped gradients cost a model is not known."
    if advice.changed:
        yield (
            "Changes of the cluster are timed, not trained: the samples until the target are"
            " taken to stay; only the pace changes."
        )
    yield (
        "Each interval holds for its own pair; among many intervals, one in twenty misleads by"
        " chance. An experiment's step times and network are taken as they are given."
    )


def as_json(advice: Advice) -> str:
    return json.dumps(_plain(advice), indent=2, allow_nan=False)


def _plain(advice: Advice) -> dict[str, Any]:
    return {
        "advice": SCHEMA,
        "experiment": advice.world.experiment.name,
        "confidence": CONFIDENCE,
        "trained": advice.trained,
        "seeds": advice.seeds,
        "budget_s": advice.options.budget_s,
        "used_s": advice.used_s,
        "answer": sentences(advice),
        "basis": list(basis(advice)),
        "time": _plain_standings(advice.time),
        "final": None if advice.final is None else _plain_standings(advice.final),
        "candidates": [
            {
                **_plain_candidate(candidate),
                "means": {
                    key: advice.mean(label, key)
                    for key in ("wait_fraction", "staleness_mean", "staleness_max", "lead_max",
                                "dropped", "seconds")
                },
                "shares": advice.shares(label),
                "applied": advice.applied(label),
            }
            for label, candidate in advice.contenders.items()
        ],
        "timed": [
            {
                **_plain_candidate(each.candidate),
                "seconds": each.seconds,
                "staleness_mean": each.staleness,
                "wait_fraction": each.mean("wait_fraction"),
            }
            for each in advice.timed
        ],
        "changes": [
            {"what": each.change, "best": each.standings.first.paradigm,
             "todays_best_s": each.todays_best_s,
             "time": _plain_standings(each.standings)}
            for each in advice.changed
        ],
    }  # fmt: skip


def _plain_candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "label": candidate.label,
        "paradigm": {"name": candidate.choice.name, **candidate.choice.parameters},
        "servers": None if candidate.servers is None else list(candidate.servers),
        "lr": candidate.lr,
    }


def _plain_standings(standings: Standings) -> dict[str, Any]:
    return {
        "measure": standings.measure.key,
        "alike": alike(standings),
        "ranked": [
            {"label": one.paradigm, **asdict(one.value)} for one in standings.ranked
        ],
        "behind": [
            {"label": each.other.paradigm, "by": each.margin.mean, "low": each.margin.low,
             "high": each.margin.high, "equal": each.equal, "clear": each.is_clear}
            for each in standings.behind
        ],
    }  # fmt: skip


def files_of(advice: Advice) -> dict[str, str]:
    """Return the name of each file of an answer -> its text.

    A second experiment is advised where the best for the final metric is surely better in it than
    the best for the time.
    """
    best, answer = advice.best, answer_of(advice)
    experiment = advice.world.advised(best)
    files = {
        ADVISED: experiment.to_yaml(),
        PAGE: answer.html(),
        MARKDOWN: answer.markdown(),
        JSON: as_json(advice) + "\n",
    }
    model = advice.best_model
    if model is not None and advice.final is not None and best.label not in alike(advice.final):
        files[ADVISED_MODEL] = advice.world.advised(model).to_yaml()
    if best.is_synchronous:
        files |= snippets(experiment, best, advice.shares(best.label))
    return files


def write(advice: Advice, folder: Path) -> list[Path]:
    """Write the files of an answer, and remove what an earlier one had beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADVISED_MODEL).unlink(missing_ok=True)
    for old in folder.glob("advised_*.py"):
        old.unlink()
    paths = []
    for name, text in files_of(advice).items():
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        paths.append(path)
    return paths
