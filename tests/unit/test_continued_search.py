"""A searcher goes on with the trials that were under way when its sweep was lost."""

import pytest
from ray import tune
from ray.tune.search import Searcher

from raysync.tuning.continued_search import ContinuedSearch

POINTS = [{"trial": "a", "update.lr": 0.1}, {"trial": "b", "update.lr": 0.2}]


class Listening(Searcher):
    """Knows the trial a, and those that it has suggested."""

    def __init__(self):
        super().__init__("loss", "min")
        self.known, self.told = {"a"}, []

    def suggest(self, trial_id):
        self.known.add(trial_id)
        return {"update.lr": 0.5}

    def on_trial_result(self, trial_id, result):
        self.on_trial_complete(trial_id, result)

    def on_trial_complete(self, trial_id, result=None, error=False):
        if trial_id not in self.known:
            raise KeyError(trial_id)
        self.told.append((trial_id, result, error))


def test_trials_under_way_come_first_under_the_ids_that_the_searcher_knows():
    inner = Listening()
    search = ContinuedSearch(inner, POINTS)
    assert [search.suggest(name) for name in ("x", "y", "z")] == [*POINTS, {"update.lr": 0.5}]
    search.on_trial_result("x", {"loss": 2})
    search.on_trial_result("z", {"loss": 3})
    search.on_trial_complete("x", {"loss": 1})
    search.on_trial_complete("z", None, error=True)
    assert inner.told == [
        ("a", {"loss": 2}, False),
        ("z", {"loss": 3}, False),
        ("a", {"loss": 1}, False),
        ("z", None, True),
    ]
    search.on_trial_complete("y", {"loss": 1})  # chosen behind the searcher's last save
    with pytest.raises(KeyError):
        search.on_trial_complete("w", {"loss": 1})


def test_optuna_goes_on_with_what_it_has_learned(tmp_path):
    pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    first = OptunaSearch({"update.lr": tune.uniform(0, 1)}, metric="loss", mode="min", seed=0)
    chosen = first.suggest("a")
    first.save(str(tmp_path / "searcher-state-1.pkl"))
    again = OptunaSearch()
    again.restore_from_dir(str(tmp_path))
    search = ContinuedSearch(again, [{"trial": "a", **chosen}])
    assert search.metric == "loss"
    assert search.suggest("x") == {"trial": "a", **chosen}
    search.on_trial_complete("x", {"loss": 0.25, "training_iteration": 1})
    [trial] = again._ot_study.trials
    assert (trial.value, trial.params) == (0.25, chosen)
    search.save(str(tmp_path / "searcher-state-2.pkl"))
    assert search.suggest("y").keys() == {"update.lr"}
