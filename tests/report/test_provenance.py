"""What a report says was trained."""

from raysync import config, run
from raysync.predict.advise import advise
from raysync.results.collection import collect
from raysync.results.provenance import configuration
from tests.builders.tasks import Sums

QUICK = {
    "engine": "virtual",
    "batch_size": 2,
    "workload": {"samples": 16},
    "workers": [{"count": 2, "step_s": 0.1}],
    "local": {"steps": 2, "lr": 0.01},
}


def test_a_report_of_an_own_task_names_it_and_no_default(tmp_path):
    record = run(QUICK | {"output": str(tmp_path)}, task=Sums())
    said = configuration(collect([record.path]))
    assert said["task"] == record.config.subject
    for default in ("mlp", "digits"):
        assert not [value for value in said.values() if default in value]
        assert default not in (record.path / "config.yaml").read_text()
    assert "steps: 2" in said["local"]


def test_a_report_says_local_only_where_it_is_set(tmp_path):
    for settings, says in ((QUICK, True), (QUICK | {"local": None}, False)):
        record = run(settings | {"output": str(tmp_path)})
        assert ("local" in configuration(collect([record.path]))) is says


def test_local_steps_are_a_part_of_the_scenario(tmp_path):
    for steps in (2, 4):
        run(QUICK | {"local": {"steps": steps, "lr": 0.01}, "output": str(tmp_path)})
    assert len(collect([tmp_path / "experiment"]).scenarios) == 2


def test_what_is_advised_for_an_own_task_has_it_and_its_local_steps():
    task = "tests.builders.tasks:Validated"
    experiment = config.validate(QUICK | {"task": task, "target": {"metric": "loss", "at_most": 1}})
    said = advise(experiment, choices=[config.ParadigmChoice(name="asp")]).sweep
    assert said["task"]["name"] == task
    assert "model" not in said
    assert "name" not in said.get("data", {})
    assert said["local"]["steps"] == 2
    assert config.validate(said).local == experiment.local
