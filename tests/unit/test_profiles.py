"""Cluster profiles and trace files: what they bring, and what is wrong with them."""

from pathlib import Path

import pytest
import yaml

from raysync import config
from raysync.errors import ConfigError
from tests.builders.messages import naming

PROFILE = """
about: two unequal workers
workers: [{name: fast, step_s: 1}, {name: slow, step_s: 2}]
network: {update_s: 3}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, text):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)


def names(experiment):
    return [group.name for group in experiment.workers]


def parse(text, *overrides):
    return config.parse(text, overrides, source="x.yaml")


def test_a_profile_brings_workers_and_network(folder):
    write("p.yaml", PROFILE)
    write("elsewhere/q.yaml", "workers: [{name: only}]")
    for experiment in (
        parse("profile: ./p.yaml"),
        parse("profile: p.yaml"),
        config.validate({"profile": "p.yaml"}),
        parse("seed: 0", "profile=p.yaml"),
        parse(f"profile: {folder}/p.yaml"),
    ):
        assert (names(experiment), experiment.network.update_s) == (["fast", "slow"], 3)
    assert parse("profile: p.yaml").profile == "p.yaml"
    of_the_file = parse("profile: elsewhere/q.yaml\nnetwork: {update_s: 5}")
    assert of_the_file.network.update_s == 5, "the profile brings no network"


def test_the_resolved_experiment_needs_no_profile(folder):
    write("p.yaml", PROFILE)
    experiment = parse("profile: p.yaml\nseed: 3")
    Path("p.yaml").unlink()
    again = parse(experiment.to_yaml())
    assert again == experiment.model_copy(update={"profile": None})


def test_overrides_come_after_the_profile_and_another_profile_takes_its_place(folder):
    write("p.yaml", PROFILE)
    write("q.yaml", "workers: [{name: only}]")
    assert parse("seed: 0", "workers.1.step_s=7", "profile=p.yaml").workers[1].step_s == 7
    other = parse("profile: p.yaml", "profile=q.yaml")
    assert (names(other), other.network.update_s, other.profile) == (["only"], 0, "q.yaml")
    assert names(parse("workers: [{name: mine}]", "profile=p.yaml")) == ["fast", "slow"]
    none = parse("profile: p.yaml", "profile=null")
    assert (names(none), none.profile) == (["worker"], None)
    replaced = parse("profile: nowhere.yaml", "profile=p.yaml")
    assert names(replaced) == ["fast", "slow"], "one that is replaced is not read"


def test_the_profiles_that_come_with_raysync_are_experiments_on_both_engines():
    for name, about in config.profiles().items():
        assert about
        for engine in ("virtual", "ray"):
            experiment = config.validate({"profile": name, "engine": engine})
            assert experiment.worker_count >= 1
            assert parse(experiment.to_yaml()).workers == experiment.workers
    first, *others = sorted(config.profiles())
    known = " ".join([first, *others])
    with pytest.raises(ConfigError, match=naming(f"x.yaml: profile: 'nothing-like-it' {known}")):
        parse("profile: nothing-like-it")
    for given in ([f"profile: {first}x"], ["seed: 0", f"profile={first}x"]):
        with pytest.raises(ConfigError, match=naming(f"{first}x {first!r}")):
            parse(*given)


@pytest.mark.parametrize(
    ("profile", "experiment", "says"),
    [
        (None, "profile: ./p.yaml", "p.yaml:"),
        ("a: b: c", "profile: ./p.yaml", "profile ./p.yaml: YAML"),
        ("- 1", "profile: ./p.yaml", "profile ./p.yaml:"),
        ("wrokers: []", "profile: ./p.yaml", "profile ./p.yaml: wrokers: 'wrokers' 'workers'"),
        ("{1: 2, x: 3}", "profile: ./p.yaml", "profile ./p.yaml: 1: 1"),
        ("batch_size: 3", "profile: ./p.yaml", "Allowed cluster"),
        (PROFILE, "{profile: ./p.yaml, workers: [{}]}", "profile ./p.yaml workers"),
        (PROFILE, "{profile: ./p.yaml, workers: [{}], network: {}}", "network workers"),
        ("workers: [{speed: -1}]", "profile: ./p.yaml", "./p.yaml: workers[0].speed: -1"),
        ("network: {update: 1}", "profile: ./p.yaml", "./p.yaml: network.update: 'update_s'"),
        ("workers: 3", "profile: ./p.yaml", "x.yaml profile ./p.yaml: workers:"),
        ("workers:", "profile: ./p.yaml", "x.yaml profile ./p.yaml: workers:"),
        ("workers: [{trace: t.txt}]", "profile: ./p.yaml", "workers[0].trace: t.txt:"),
        (PROFILE, "{profile: ./p.yaml, seed: -1}", "x.yaml: seed:"),
        (PROFILE, "profile: [a]", "profile"),
    ],
)
def test_what_is_wrong_with_a_profile_is_named(folder, profile, experiment, says):
    if profile is not None:
        write("p.yaml", profile)
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        parse(experiment)
    assert len(str(raised.value).splitlines()) <= 2


def trace_of(text):
    return parse(text).workers[0].trace


def test_a_trace_is_a_list_or_a_file(folder, monkeypatch):
    write("t.txt", "# measured\n1 2.5\n\n3e-1 # a comment\n")
    assert trace_of("workers: [{trace: [1, 2.5]}]") == (1, 2.5)
    assert trace_of("workers: [{trace: t.txt}]") == (1, 2.5, 0.3)
    assert trace_of(f"workers: [{{trace: {folder}/t.txt}}]") == (1, 2.5, 0.3)
    resolved = yaml.safe_load(parse("workers: [{trace: t.txt}]").to_yaml())
    assert resolved["workers"][0]["trace"] == [1, 2.5, 0.3]
    monkeypatch.setenv("HOME", str(folder))
    assert trace_of("workers: [{trace: ~/t.txt}]") == (1, 2.5, 0.3)


def test_a_trace_that_a_profile_names_lies_beside_it(folder, monkeypatch):
    write("far/t.txt", "4 5")
    write("far/p.yaml", "workers: [{trace: t.txt}, {name: b, trace: [1]}, {name: c}]")
    assert [group.trace for group in parse("profile: far/p.yaml").workers] == [(4, 5), (1,), ()]
    write("t.txt", "6")
    write("far/home.yaml", "workers: [{trace: ~/t.txt}]")
    write("far/absolute.yaml", f"workers: [{{trace: {folder}/t.txt}}]")
    monkeypatch.setenv("HOME", str(folder))
    assert parse("profile: far/home.yaml").workers[0].trace == (6,)
    assert parse("profile: far/absolute.yaml").workers[0].trace == (6,)


@pytest.mark.parametrize(
    ("given", "text", "facts"),
    [
        ("t.txt", None, "t.txt: (No such file or directory)"),
        ("t.txt", "", "t.txt"),
        ("t.txt", "# nothing\n\n", "t.txt"),
        ("t.txt", "1\nfast\n", "t.txt 2 'fast'"),
        ("t.txt", "1,2", "t.txt 1 '1,2'"),
        ("t.txt", "1 -2", "t.txt 1: -2 s"),
        ("t.txt", "0", "t.txt 1: 0 s"),
        ("t.txt", "1\n1 nan", "t.txt 2: nan s"),
        ("t.txt", "1 2 inf", "t.txt 1: inf s"),
        ("[1, -1]", "", "2 -1"),
        ("[1, '-1']", "", "2: '-1'"),
        ("[.nan]", "", "1 nan"),
        ("[a]", "", "1: 'a'"),
        ("7", "", ""),
        (".", "", "directory"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named(folder, given, text, facts):
    if text is not None:
        write("t.txt", text)
    with pytest.raises(ConfigError, match=naming(f"x.yaml: workers[0].trace: {facts}")) as raised:
        parse(f"workers: [{{trace: {given}}}]")
    assert len(str(raised.value).splitlines()) == 1
