"""`raysync switch-search`: what it keeps and says, and what it refuses; its trainings are
pretended.
"""

import json
from pathlib import Path

import pytest
import yaml

from raysync import config
from raysync.record.sweeps import FILE, RECORDS, TrialNote, write_note
from raysync.tuning import switch_trials
from tests.builders.files import write
from tests.builders.messages import tells

FILE_TEXT = """
name: mine
engine: virtual
paradigm: {name: sync-switch, first: bsp, then: asp}
switch_search: {target: final_accuracy, threshold: 0.015, first_repeats: 2, candidate_repeats: 2,
                known: {value: 0.9, seconds: 100}}
"""


class Pretended:
    """Takes the place of `train_all`: accuracy falls as the fraction does."""

    def __init__(self):
        self.asked = []
        self.last = 10**9
        """Trainings until the user presses Ctrl-C."""
        self.status = {}
        """(fraction, seed) -> what becomes of it, if it does not finish."""

    def __call__(self, stage, **_):
        folder = stage.trials.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(stage.experiment.recorded.to_yaml(), encoding="utf-8")
        for point in stage.points:
            if len(self.asked) == self.last:
                return "interrupted"
            fraction, seed = point["paradigm.fraction"], point["seed"]
            self.asked.append((fraction, seed))
            self._train(folder, point["trial"], fraction, seed)
        return "done"

    def _train(self, folder, name, fraction, seed):
        status = self.status.get((fraction, seed), "finished")
        settings = {"paradigm.fraction": fraction, "seed": seed}
        write_note(
            folder,
            TrialNote(name, settings, ended=True, error="it broke" if status == "failed" else ""),
        )
        if status == "failed":
            return
        record = folder / RECORDS / name / "20260101-120000-sync-switch-0000"
        record.mkdir(exist_ok=True)
        accuracy = 0.9 - (0.02 if fraction < 0.25 else 0.0) + 0.001 * seed
        summary = {
            "status": status,
            "error": "",
            "final_accuracy": None if status == "diverged" else accuracy,
            "converged_accuracy": None,
            "seconds": 100 * fraction + 10,
            "samples": 1,
            "pushes": 1,
            "updates": 1,
            "dropped": 0,
        }
        (record / "summary.json").write_text(json.dumps(summary))
        for file in ("config.yaml", "journal.jsonl"):
            (record / file).touch()


@pytest.fixture
def pretended(monkeypatch):
    made = Pretended()
    monkeypatch.setattr(switch_trials, "train_all", made)
    monkeypatch.setattr(switch_trials.Connection, "open", lambda *_: None)
    return made


@pytest.fixture
def search(call, monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setenv("COLUMNS", "200")

    def search(*settings, recurring=False):
        write(Path("x.yaml"), FILE_TEXT)
        options = ["--recurring"] * recurring + [f"--set={setting}" for setting in settings]
        return call("switch-search", "x.yaml", *options)

    return search


FIRST, HALF, QUARTER, EIGHTH = (
    tuple((fraction, seed) for seed in (0, 1)) for fraction in (1.0, 0.5, 0.25, 0.125)
)
ALL = [*FIRST, *HALF, *QUARTER, *EIGHTH]


def result():
    [folder] = Path("runs/mine").iterdir()
    return folder, json.loads((folder / "search.json").read_text())


def test_the_command(search, pretended):
    code, out, err = search()
    assert code == 0, err
    assert pretended.asked == ALL
    folder, found = result()
    assert found["fraction"] == 0.25
    assert found["cost"] == pytest.approx(2 + 2 * (60 + 35 + 22.5) / 110)
    assert found["effective"] == pytest.approx(6 / found["cost"])
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line[1:2].isdigit()}
    assert rows["1"] == ["(bsp", "alone)", "2", "90.05%", "110", "1.000"]
    assert rows["0.25"] == ["2", "90.05%", "yes", "35.0", "0.318"]
    assert rows["0.125"] == ["2", "88.05%", "no", "22.5", "0.205"]
    assert tells(out, "fraction 0.25: 88.55%")
    for name in ("cost", "amortisation", "effective"):
        assert f"{found[name]:.2f}" in out.partition("Search cost")[2]
    chosen = Path(out.rsplit("raysync run ", 1)[1].strip())
    assert chosen.samefile(folder / "chosen.yaml")
    expected = yaml.safe_load(FILE_TEXT) | {"switch_search": None}
    expected["paradigm"]["fraction"] = 0.25
    assert config.load(chosen) == config.validate(expected)


@pytest.mark.parametrize("last", [0, 1, 4, 7])
@pytest.mark.parametrize("output", ["runs", "/runs"])
def test_a_second_call_goes_on_where_the_first_was_stopped(
    search, pretended, tmp_path, last, output
):
    where = f"output={tmp_path}/runs" if output == "/runs" else "output=runs"
    pretended.last = last
    code, _, err = search(where)
    assert (code, pretended.asked) == (130, ALL[:last])
    assert tells(err, "command")
    pretended.last = 10**9
    code, out, err = search(where)
    assert (code, pretended.asked) == (0, ALL), "nothing twice"
    assert tells(err, "search")
    assert result()[1]["fraction"] == 0.25
    assert search(where)[:2] == (0, out)
    assert pretended.asked == ALL


def test_another_threshold_takes_the_trainings_that_are_there(search, pretended):
    search()
    code, _, err = search("switch_search.threshold=0", "switch_search.first_repeats=3")
    assert code == 0
    assert pretended.asked == [*ALL, (1.0, 2)]
    assert tells(err, "switch_search")
    folder, found = result()
    assert found["fraction"] == 1.0, (
        "three runs of `first` alone are better on average than two of the others"
    )
    assert config.load(folder / FILE).switch_search.threshold == 0
    search("switch_search.threshold=0.01")
    assert pretended.asked == [*ALL, (1.0, 2)], "nothing was missing"
    assert config.load(folder / FILE).switch_search.threshold == 0.01


def test_an_old_answer_does_not_stay_for_a_new_question(search, pretended):
    search()
    pretended.last = len(ALL)
    assert search("switch_search.candidate_repeats=4")[0] == 130
    [folder] = Path("runs/mine").iterdir()
    assert not {"search.json", "chosen.yaml"} & {file.name for file in folder.iterdir()}


def test_another_experiment_is_another_search(search, pretended):
    search()
    code, _, err = search("update.lr=0.2")
    assert code == 0
    assert pretended.asked == ALL + ALL
    assert tells(err, "search: x.yaml runs/mine/")
    assert len(list(Path("runs/mine").iterdir())) == 2
    assert tells(search()[2], "search")
    assert pretended.asked == ALL + ALL


def test_what_broke_is_trained_again(search, pretended):
    pretended.status = {(0.5, 1): "failed"}
    code, _, err = search()
    assert code == 1
    assert "1 of 4 trainings failed" in err
    pretended.status = {}
    assert search()[0] == 0
    assert pretended.asked == [*FIRST, *HALF, HALF[1], *QUARTER, *EIGHTH]


def test_all_of_the_first_phase_diverge(search, pretended):
    pretended.status = dict.fromkeys(FIRST, "diverged")
    code, out, err = search()
    assert (code, out) == (1, "")
    assert tells(err, "2 `first` 2 diverged: final_accuracy")
    assert pretended.asked == [*FIRST, *HALF]


def test_none_ever_converges(search, pretended):
    pretended.status = {FIRST[0]: "diverged"}
    code, _, err = search("switch_search.target=converged_accuracy")
    assert code == 1
    assert tells(err, "1 diverged 1 converged: converged_accuracy")


def test_a_candidate_that_diverges_fails(search, pretended):
    pretended.status = {(0.25, 0): "diverged"}
    code, out, _ = search()
    assert code == 0
    assert "0.25 1 diverged" in out
    assert result()[1]["fraction"] == 0.5


def test_nothing_is_saved(search, pretended):
    pretended.status = dict.fromkeys(HALF, "diverged")
    _, out, _ = search()
    assert "Stay with bsp" in out
    assert tells(out, "after:")
    assert result()[1]["amortisation"] is None


def test_a_recurring_job(search, pretended):
    _, out, _ = search(recurring=True)
    assert pretended.asked == [*HALF, *QUARTER, *EIGHTH]
    assert result()[1]["cost"] == pytest.approx(2 * (60 + 35 + 22.5) / 100)
    assert "known" in out
    _, out, _ = search("switch_search.known={value: 0.9}", recurring=True)
    assert tells(out, "{value: seconds:")
    assert "0.25" in out
    assert result()[1]["cost"] is None


def test_candidates_max(search, pretended):
    _, out, _ = search("switch_search.candidates_max=2")
    assert result()[1]["fraction"] == 0.25
    assert tells(out, "tried: candidates_max 2")
