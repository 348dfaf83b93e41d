"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, by_seed, markdown

from raysync.results.statistics import Estimate, estimate, paired_difference

SAME = 0.01
"""A difference of loss, in nats, that does not matter; set before the first run."""
QUESTIONS = (
    ("1", "async", "diloco", "equal"),
    ("2", "async, sgd outside", "diloco", "equal"),
    ("2", "async, sgd outside", "diloco, sgd outside", "equal"),
    ("2", "async, dn", "async", "equal"),
    ("3", "async, dylu", "async", "unequal"),
    ("3", "async, dn, dylu", "async, dn", "unequal"),
    ("4", "quorum", "diloco", "unequal"),
    ("5", "ssp", "async", "unequal"),
    ("5", "lagtuner", "async", "unequal"),
    ("6", "snoo", "diloco", "equal"),
    ("8", "diloco, inner rate", "plain bsp", "equal"),
    ("9", "diloco, cosine", "plain bsp, cosine", "equal"),
    ("10", "async, falling", "diloco, falling", "equal"),
    ("10", "async, falling", "diloco, falling", "unequal"),
    ("10", "quorum, falling", "diloco, falling", "unequal"),
)
"""Number of the question, a method, what it is compared with, the speeds."""


def _rows(results: Results, setting: str) -> pd.DataFrame:
    rows = pd.read_csv(results.folder / "results" / "local-steps.time.csv")
    return rows[rows.setting == setting]


def _beside(row: pd.Series) -> str:
    """Format a published figure and ours."""
    return f"{row.published:g} / {'given' if row.is_given else f'{row.ours:.3g}'}"


def _grid(rows: pd.DataFrame) -> str:
    steps = sorted(rows.steps.unique())
    cells = rows.set_index(["mbit_per_s", "steps"])
    return markdown(
        ["Mbit/s", *(f"H = {each}" for each in steps)],
        [
            [f"{rate:g}", *(_beside(cells.loc[rate, each]) for each in steps)]
            for rate in rows.mbit_per_s.unique()
        ],
    )


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    halos = _rows(results, "halos-4x4").set_index(["paradigm", "steps"]).ours
    steps = sorted(halos.index.levels[1])
    trained = _trained(results)
    return {
        "claims": _claims(results),
        "methods": _methods(trained),
        "answers": _answers(trained),
        "codecs": _codecs(_trained(results, "codecs")),
        "ray": _on_ray(_trained(results, "ray")),
        "toy": _toy(_trained(results, "toy")),
        "utilisation": _grid(_rows(results, "diloco-measured")),
        "tokens": _grid(_rows(results, "ft-diloco")),
        "halos": markdown(
            ["paradigm", *(f"H = {each}" for each in steps)],
            [
                [f"`{name}`", *(f"{halos[name, each]:.0f}%" for each in steps)]
                for name in ("bsp", "asp")
            ],
        ),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    measured, tokens = _rows(results, "diloco-measured"), _rows(results, "ft-diloco")
    ratios = {
        name: (rows.ours / rows.published)[~rows.is_given.astype(bool)]
        for name, rows in (("measured", measured), ("tokens", tokens))
    }
    local = (tokens.steps > 1) & ~tokens.is_given.astype(bool)
    off = (tokens.ours / tokens.published - 1)[local].abs().max()
    computing = (measured.published > 50) & ~measured.is_given.astype(bool)
    computing_off = (measured.ours / measured.published - 1)[computing].abs()
    trained = _trained(results)
    edges, cells = _edges(results)
    gigabit = measured[measured.mbit_per_s == 1000].set_index("steps")
    quorum_s, diloco_s = (_seconds(trained, name, 32) for name in ("quorum", "diloco"))
    return {
        **_ray_facts(_trained(results, "ray")),
        **{
            f"{key}, {steps}": f"{gigabit[key][steps]:.0f}%"
            for key in ("published", "ours")
            for steps in (1, 32)
        },
        "asynchrony": _text(_difference(trained, "async", "diloco", "equal", 32), "{:+.3f}"),
        "asynchrony, sgd outside": _text(
            _difference(trained, "async, sgd outside", "diloco, sgd outside", "equal", 32),
            "{:+.3f}",
        ),
        "momentum": _text(_momentum(trained, 32), "{:+.3f}"),
        "momentum 8": _text(_momentum(trained, 8), "{:+.3f}"),
        "asynchrony, unequal": _text(
            _difference(trained, "async", "diloco", "unequal", 32), "{:+.3f}"
        ),
        "asynchrony, unequal, time": f"{_seconds(trained, 'async', 32) / diloco_s:.0%}",
        "quorum": _text(_difference(trained, "quorum", "diloco", "unequal", 32), "{:+.3f}"),
        **{
            f"{method}, {speeds}, falling": _text(
                _difference(trained, f"{method}, falling", "diloco, falling", speeds, 32), "{:+.3f}"
            )
            for method, speeds in (("async", "equal"), ("async", "unequal"), ("quorum", "unequal"))
        },
        "quorum 8": _text(_difference(trained, "quorum", "diloco", "unequal", 8), "{:+.3f}"),
        "quorum time": f"{quorum_s / diloco_s:.0%}",
        "edges": f"{len(edges)} of {cells}",
        "next to edges": f"{min(edges):.3f} to {max(edges):.3f}",
        "most computing": f"{len(computing_off)}",
        "most computing off": f"{computing_off.max():.0%}",
        **{
            name: _text(estimate(list(trained[trained.method == name].loss)), "{:.3f}")
            for name in ("plain bsp", "plain bsp, cosine")
        },
        **{
            f"cost {steps}{schedule}": _text(
                _difference(trained, f"diloco{ours}", f"plain bsp{schedule}", "equal", steps),
                "{:+.3f}",
            )
            for steps in (8, 32)
            for ours, schedule in ((", inner rate", ""), (", cosine", ", cosine"))
        },
        "least": f"{ratios['measured'].min():.2f}",
        "most": f"{ratios['measured'].max():.2f}",
        "points": str(len(ratios["measured"])),
        "local": f"{off:.0%}",
        "plain": f"{ratios['tokens'].max():.1f}",
    }


# ---- what was trained ----


def _trained(results: Results, name: str = "train") -> pd.DataFrame:
    return pd.read_csv(results.folder / "results" / f"local-steps.{name}.csv")


def _text(value: Estimate, form: str) -> str:
    if value.low is None or value.high is None:
        return "-" if value.mean is None else form.format(value.mean)
    return f"{form.format(value.mean)} ({form.format(value.low)} to {form.format(value.high)})"


def _verdict(value: Estimate) -> str:
    """Say what a difference of losses means: less is better."""
    assert value.low is not None, "one seed"
    assert value.high is not None, "one seed"
    if value.low >= -SAME and value.high <= SAME:
        return "the same"
    if value.low > 0:
        return "worse"
    return "better" if value.high < 0 else "cannot be told"


def _methods(rows: pd.DataFrame) -> str:
    """Return the losses and seconds of each method, by speeds and steps."""
    cells, names = {}, list(dict.fromkeys(rows.method))
    for (method, speeds, steps), part in rows.groupby(["method", "speeds", "steps"]):
        loss = estimate(list(part.loss))
        seconds = part.virtual_s.mean()
        cells[method, speeds, steps] = f"{_text(loss, '{:.3f}')}, {seconds:.0f} s"
    columns = [("equal", 8), ("equal", 32), ("unequal", 8), ("unequal", 32)]
    return markdown(
        ["method", *(f"{speeds}, H = {steps}" for speeds, steps in columns)],
        [
            [f"{name}", *(cells.get((name, *column), "-") for column in columns)]
            for name in names
            if not name.startswith("plain bsp")
        ],
    )


def _difference(rows: pd.DataFrame, ours: str, theirs: str, speeds: str, steps: int) -> Estimate:
    part = rows[(rows.speeds == speeds) & rows.steps.isin([1, steps])]  # 1: plain BSP
    return paired_difference(
        by_seed(part[part.method == ours], "loss"), by_seed(part[part.method == theirs], "loss")
    )


def _momentum(rows: pd.DataFrame, steps: int) -> Estimate:
    """Return by how much more asynchrony costs with outer momentum than with SGD outside."""
    rows = rows[(rows.speeds == "equal") & (rows.steps == steps)]
    losses = {name: by_seed(part, "loss") for name, part in rows.groupby("method")}
    with_momentum, without = (
        {seed: value - losses[barrier][seed] for seed, value in losses[name].items()}
        for name, barrier in (("async", "diloco"), ("async, sgd outside", "diloco, sgd outside"))
    )
    return paired_difference(with_momentum, without)


def _answers(rows: pd.DataFrame) -> str:
    lines = []
    for number, ours, theirs, speeds in QUESTIONS:
        for steps in (8, 32):
            difference = _difference(rows, ours, theirs, speeds, steps)
            if not difference.count:  # question 10 has H = 32 only
                continue
            text = _text(difference, "{:+.3f}")
            lines.append(
                [number, f"{ours} - {theirs}", speeds, str(steps), text, _verdict(difference)]
            )
    return markdown(["question", "difference", "speeds", "H", "nats", ""], lines)


def _claims(results: Results) -> str:
    """Tabulate what is claimed of loss, beside ours with 32 local steps."""
    trained, codecs, toy = (_trained(results, name) for name in ("train", "codecs", "toy"))
    toy = toy[(toy.outer == "nesterov") & (toy.rates == "given")]
    toy_async = toy[(toy["mode"] == "async") & (toy.lr == 0.07)]
    of_toy = paired_difference(
        by_seed(toy_async, "loss"), by_seed(toy[toy["mode"] == "sync"], "loss")
    )
    codecs = codecs[codecs.steps == 32]
    plain = by_seed(codecs[codecs.wire == "float32"], "loss")
    int8, top_k = (
        paired_difference(by_seed(codecs[codecs.wire == wire], "loss"), plain)
        for wire in ("int8", "top-k")
    )

    def less(ours: str, theirs: str, speeds: str) -> Estimate:
        return _difference(trained, ours, theirs, speeds, 32)

    rows = [
        (
            "asynchrony loses with equal workers, rates that fall to 0",
            less("async, falling", "diloco, falling", "equal"),
            "reproduces",
        ),
        (
            "because of outer momentum: at a constant rate, that cost less that with SGD outside",
            _momentum(trained, 32),
            "reproduces",
        ),
        (
            "delayed Nesterov with steps by speed closes the gap",
            less("async, dn, dylu", "diloco", "unequal"),
            "does not",
        ),
        ("steps by speed help", less("async, dylu", "async", "unequal"), "does not"),
        (
            "its toy: asynchrony loses under outer momentum",
            of_toy,
            "undecided: rates not tuned, half of the phases",
        ),
        (
            "ours: diloco less BSP without local steps, rates that fall to 0",
            less("diloco, cosine", "plain bsp, cosine", "equal"),
            None,
        ),
        (
            "ours: quorum with grace less diloco, rates that fall to 0",
            less("quorum, falling", "diloco, falling", "unequal"),
            None,
        ),
        ("ours: one worker with the outer step less diloco", less("snoo", "diloco", "equal"), None),
        ("ours: SSP less async", less("ssp", "async", "unequal"), None),
        ("ours: LagTuner less async", less("lagtuner", "async", "unequal"), None),
        ("ours: int8 less float32", int8, None),
        ("ours: top-k of 1 % less float32", top_k, None),
    ]
    return markdown(
        ["claim (arXiv:2401.09135, or ours)", "nats, H = 32", "verdict"],
        [
            [claim, _text(value, "{:+.3f}"), verdict or _verdict(value)]
            for claim, value, verdict in rows
        ],
    )


def _edges(results: Results) -> tuple[list[float], int]:
    """Return what the next rate loses where the smallest that was tried is the best, and the
    number of all choices.
    """
    losses, cells = [], 0
    rates = _trained(results, "rates")
    rates = rates[~rates.method.str.contains("plain bsp|inner rate|cosine")]  # outer ones
    for _, part in rates.groupby(["method", "speeds", "steps"]):
        best, second, *_ = part.sort_values("lr").loss
        cells += 1
        if best == part.loss.min():
            losses.append(second - best)
    return losses, cells


def _seconds(rows: pd.DataFrame, method: str, steps: int) -> float:
    part = rows[(rows.method == method) & (rows.speeds == "unequal") & (rows.steps == steps)]
    return float(part.virtual_s.mean())


def _codecs(rows: pd.DataFrame) -> str:
    lines = []
    for (steps, wire), part in rows.groupby(["steps", "wire"]):
        plain = rows[(rows.steps == steps) & (rows.wire == "float32")]
        difference = paired_difference(by_seed(part, "loss"), by_seed(plain, "loss"))
        lines.append(
            [
                str(steps),
                str(wire),
                f"{part.pushed_bytes.mean() / 1e6:.2f} MB",
                _text(estimate(list(part.loss)), "{:.3f}"),
                "-" if wire == "float32" else _text(difference, "{:+.3f}"),
            ]
        )
    return markdown(["H", "pushes as", "pushed by all", "loss", "less that of float32"], lines)


# ---- once on Ray ----


def _on_ray(rows: pd.DataFrame) -> str:
    """Return what the virtual clock says beside what the repeats on Ray gave."""
    lines = []
    for (method, steps), part in rows.groupby(["method", "steps"]):
        cells = [
            f"{form.format(part[f'virtual_{key}'].iloc[0])} / {_range(part[f'ray_{key}'], form)}"
            for key, form in (("loss", "{:.4f}"), ("s", "{:.0f}"), ("staleness", "{:.2f}"))
        ]
        same = f"{part.same_weights.sum()} of {len(part)}"
        lines.append([str(method), str(steps), *cells, same])
    return markdown(["method", "H", "loss", "seconds", "staleness", "same weights"], lines)


def _range(values: pd.Series, form: str) -> str:
    least, most = form.format(values.min()), form.format(values.max())
    return least if least == most else f"{least} to {most}"


def _ray_facts(rows: pd.DataFrame) -> dict[str, str]:
    """Return by how much Ray's seconds and losses differ at most."""
    slower = (rows.ray_s / rows.virtual_s - 1).abs()
    moved = rows.ray_loss - rows.virtual_loss
    quorum = (rows.method == "quorum") & (rows.steps == 8)
    return {
        "ray diloco": f"{slower[rows.method == 'diloco'].max():.1%}",
        "ray async": f"{slower[rows.method == 'async'].max():.1%}",
        "ray async loss": f"{moved[rows.method == 'async'].abs().max():.4f}",
        "ray quorum": f"{slower[quorum].min():.0%} to {slower[quorum].max():.0%}",
        "ray quorum loss": f"{-moved[quorum].max():.4f} to {-moved[quorum].min():.4f}",
    }


# ---- the toy ----


def _toy(rows: pd.DataFrame) -> str:
    """Return the losses of each outer optimizer, mode and rate, and what async loses by."""
    lines = []
    for (rates, outer, mode, lr), part in rows.groupby(
        ["rates", "outer", "mode", "lr"], sort=False
    ):
        sync = rows[(rows["rates"] == rates) & (rows["outer"] == outer) & (rows["mode"] == "sync")]
        difference = paired_difference(by_seed(part, "loss"), by_seed(sync, "loss"))
        lines.append(
            [
                str(rates),
                str(outer),
                str(mode),
                f"{lr:g}",
                _text(estimate(list(part.loss)), "{:.3f}"),
                "-" if mode == "sync" else _text(difference, "{:+.3f}"),
                "-" if mode == "sync" else _verdict(difference),
                f"{part.virtual_s.mean():.0f} s",
            ]
        )
    return markdown(["rates", "outer", "mode", "rate", "loss", "less sync", "", "time"], lines)
