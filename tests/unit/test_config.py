"""Experiment files: what is wrong is answered with its path, its value and what is allowed."""

import re

import pytest

from raysync import config
from raysync.errors import ConfigError
from tests.builders.messages import naming

SLOW, CRASH, DRIFT = (
    "kind: slow-down, factor: 2",
    "kind: crash, worker: worker-0",
    "kind: drift, added_s: 1",
)
WRONG = {
    "%s": [
        ("a: [", "x.yaml: YAML"),
        ("- 1", "mapping"),
        ("lr: 1", "x.yaml: lr: 'lr' update.lr"),
        ("speed: 1", "workers.*.speed"),
        ("updat: 1", "updat: 'updat' 'update'"),
        ("name: a/b", "name:"),
        ("output: s3:/bucket/runs", "output: URI s3://bucket/runs 's3:/bucket/runs'"),
        ("timing: only", "timing: engine:"),
        ("engine: simulated", "'ray' 'virtual' 'simulated'"),
        ("workload: {epochs: 1, samples: 3}", "workload:"),
        ("workload: {}", "workload:"),
        ("faults: [crash]", "faults"),
        ("faults: [[]]", "faults"),
    ],
    "paradigm: %s": [
        ("spp", "x.yaml: paradigm: paradigm 'spp' 'ssp'"),
        ("{name: hybrid, k: 2}\nworkers: [{}]", "hybrid: k: 2 1 1 1"),
        ("{name: k-sync, k: 5}", "paradigm: k-sync: k: 5 4 1 4"),
        ("{name: backup-workers, backups: -1}", "backups: 0 -1"),
        ("{name: k-batch-sync, k: 0}", "k-batch-sync: k: 1 0"),
        ("{name: ringmaster, staleness: -1}", "ringmaster: staleness: 0 -1"),
        ("{name: ringmaster, paradigm: 3}", "ringmaster: paradigm: 3"),
    ],
    "paradigms: %s": [
        ("[bsp, {name: ssp, stalenes: 3}]", "paradigms[1]: 'staleness'"),
        ("[]", "paradigms:"),
        ("[bsp, asp, bsp]", "bsp asp bsp"),
        ("[bsp, {name: k-async, k: 9}]", "paradigms[1]: k-async: k: 9 4"),
    ],
    "paradigm: {name: hybrid, %s}": [
        ("k: 0", "hybrid: k: 1 'all' 0"),
        ("k: some", "hybrid: k: 'all' 'some'"),
        ("staleness_tolerance: -1", "tolerance: 0 'inf' -1"),
        ("staleness_tolerance: -.inf", "tolerance:"),
        ("pull_interval: 0", "pull_interval: 1 0"),
        ("snapshot: none", "snapshot: 'worker' 'global' 'none'"),
    ],
    "paradigm: {name: balanced, %s": [
        ("multiple: 5}", "balanced: multiple: batch_size 'worker' 32 multiple 5"),
        ("multiple: 16}\nworkers: [{name: w, batch_size: 8}]", "batch_size 'w' 8 multiple 16"),
        ("workers: {fsat: {}}}\nworkers: [{name: fast}]", "balanced: workers: 'fsat' 'fast'"),
        ("workers: [worker]}", "balanced: workers:"),
        ("paradigm: decoupled}", "balanced: paradigm: decoupled"),
        ("paradigm: balanced}", "balanced: paradigm: balanced balanced"),
        ("paradigm: {name: k-sync, k: 5}}", "balanced: k-sync: k: 5 4 1"),
        (
            "paradigm: {name: sync-switch, batch_sizes: {asp: 8}}}",
            "balanced: paradigm: sync-switch sync-switch: batch_sizes",
        ),
    ],
    "workers: [%s]": [
        ("", "workers: 1"),
        ("{name: a}, {name: a}", "different names"),
        ("{jitter: {sgima: 1}}", "workers[0].jitter.sgima: 'sigma'"),
        ("{jitter: {distribution: gamma}}", "jitter.distribution: 'empirical' 'gamma'"),
        ("{jitter: {distribution: empirical}}", "distribution: empirical 0"),
        ("{jitter: {samples: [1, 2]}}", "distribution: 2 samples"),
        ("{jitter: {distribution: empirical, samples: [1, 0]}}", "samples[1] 0 0"),
        ("{speed: 2}", "speed 1 step_s per_sample_s flops_per_s"),
        ("{fixed_s: 0.1, step_s: 1}", "fixed_s: 0.1 per_sample_s"),
        ("{floor_s: 0.1}", "floor_s: 0.1 per_sample_s"),
        ("{per_sample_s: 0.1, step_s: 1}", "flops_per_s step_s per_sample_s"),
        ("{step_s: 1, flops_per_s: 1}", "per_sample_s flops_per_s step_s flops_per_s"),
        ("{step_s: 1, trace: [1]}", "step_s trace"),
        ("{gpus: 1.5}", "workers[0]: gpus: 1 1.5"),
        ("{gpus: 2, devices_per_worker: 4}", "devices_per_worker: 4 gpus: 2 gpus: 4 gpus: 0"),
        ("{gpus: 0.5, devices_per_worker: 2}", "devices_per_worker: 2 gpus: 0.5"),
        ("{devices_per_worker: 64}", "batch_size: 32 64"),
        ("{name: slow, devices_per_worker: 4, batch_size: 2}", "workers: slow: batch_size: 2 4"),
        ("{batch_size: 8, max_batch: 4}", "batch_size: 8 max_batch: 4"),
        ("{name: small, max_batch: 16}", "batch_size: 32 16 'small' batch_size"),
        (
            "{max_batch: 32}]\nparadigm: {name: sync-switch, batch_sizes: {asp: 64}}\nseeds: [1",
            "paradigm sync-switch: batch_sizes.asp: 64 32",
        ),
        ("{accelerator_type: A100}", "accelerator_type: A100"),
        ("{resources: {GPU: 1}}", "resources: GPU"),
        ("{label_selector: {zone: 'in(a'}}", "workers[0].label_selector.zone: 'in(a'"),
        ("{fallback_label_selectors: [{zone: a}]}", "allowed"),
    ],
    "update: {%s}": [
        ("warmup: 0.1", "update.warmup: 'warmup' update.schedule.warmup"),
        ("combine: sum", "scales twice"),
        ("nesterov: true", "nesterov"),
        ("schedule: {name: cosin}", "'cosine' 'inverse-sqrt' 'cosin'"),
        ("momentum_ramp: {name: linear, over: 0.1}", "0 momentum 0"),
        ("momentum: 0.9, momentum_ramp: linear", "update.momentum_ramp.over:"),
        ("momentum: 0.9, momentum_ramp: {name: exponential, over: 0.1}", "start 0"),
        ("delay_compensation: {strength: 0}", "update.delay_compensation.strength: 0 0"),
        ("optimizer: mla", "update: mla momentum 0"),
        ("staleness_scaling: {name: power, exponent: 0}", "exponent: 0 0"),
    ],
    "local: {optimizer: {%s}}": [("name: delayed-nesterov, every: 4", "local: delayed momentum 0")],
    "update: {%s": [
        ("phases: {asp: {lr: 1}}}", "update.phases: 'asp' phases"),
        ("phases: {aps: {lr: 1}}}\nparadigm: sync-switch", "update.phases: 'aps' 'asp'"),
        ("phases: {bps: {}}}\nparadigms: [bsp, sync-switch]", "'bsp' bsp"),
        (
            "optimizer: mla, momentum: 0.9, phases: {asp: {momentum: 0}}}",
            "update: phases.asp: mla momentum 0",
        ),
        (
            "combine: sum, lr_scaling: none, phases: {asp: {lr_scaling: linear}}}",
            "update: phases.asp: combine: sum lr_scaling:",
        ),
        (
            "momentum: 0.9, nesterov: true, phases: {asp: {momentum: 0}}}",
            "phases.asp: nesterov momentum",
        ),
    ],
    "target: {%s}": [
        ("metric: accuracy, at_least: 1.5", "target: 0 1 1.5"),
        ("metric: accuracy, at_most: 0.5", "target: at_least 0 1"),
        ("metric: loss, at_least: 1", "target: loss better: at_most"),
        ("metric: f1", "target: at_least at_most"),
        ("metric: f1, at_least: 1, at_most: 2", "target: at_least at_mo"),
        ("at_least: 0.9", "target.metric:"),
        ("metric: f1, at_least: .nan", "target.at_least:"),
    ],
    "cluster: {%s}": [
        ("server_shards: auto", "server_shards: 'auto'"),
        ("server_placement: spread, server_label_selector: {a: b}", "nodes"),
        ("server_placement: with-workers, server_label_selector: {a: b}", "nodes"),
        ("min_workers: 5", "cluster.min_workers: 5 4"),
        ("metrics: {published: false, per_worker_histograms: true}", "cluster.metrics"),
    ],
    "checkpoint: {%s}": [
        ("", "checkpoint: taken: every_s: 60"),
        ("keep: 3", "checkpoint:"),
        ("every_s: 1, keep: 0", "checkpoint.keep: 0"),
        ("every_s: 1, output: 's3:/x'", "checkpoint.output: URI"),
    ],
    "faults: [{%s}]": [
        ("kind: slowdown, factor: 2", "faults[0]: kind 'slowdown' 'slow-down'"),
        ("factor: 2", "x.yaml: faults[0]: kind:"),
        ("kind: slow-down", "faults[0].factor:"),
        ("kind: speed-drift, sigma: 0.1", "faults[0].period_s"),
        (f"{SLOW}, start_s: 1, clocks: [0, 2]", "faults[0]: clocks start_s"),
        (f"{SLOW}, clocks: [0, 2], times: 2, lasts_s: 2, end_s: 9", "clocks lasts_s"),
        (f"{SLOW}, clocks: [3, 3]", "(3) after (3)"),
        (f"{SLOW}, clocks: [-1, null]", "faults[0].clocks[0]: 0"),
        (f"{SLOW}, start_clock: 2", "faults[0]: start_clock: 2 clocks:"),
        (f"{SLOW}, times: 2, mean_gap_s: 1, lasts_s: 1, end_s: 9", "times mean_gap"),
        (f"{SLOW}, times: 2, end_s: 9", "lasts_s"),
        (f"{SLOW}, mean_gap_s: 9", "lasts_s"),
        (f"{SLOW}, times: 2, lasts_s: 9", "times end_s"),
        (f"{SLOW}, lasts_s: 2, end_s: 9", "mean_gap"),
        (f"{SLOW}, times: 2, lasts_s: 1, start_s: 9, end_s: 9", "(9) after (9)"),
        (f"{SLOW}, count: 5", "faults[0]: count: 5 4"),
        (f"{SLOW}, workers: [worker-1], count: 2", "faults[0]: count: 2 1"),
        (f"{SLOW}, workers: [wroker]", "faults[0]: 'wroker' 'worker' worker-0 worker-3"),
        (DRIFT, "faults[0].period_s"),
        (f"{DRIFT}, period_clocks: 1", "faults[0]: period_clocks: 1 period_s"),
        (CRASH, "at_s at_clock"),
        (f"{CRASH}, at_s: 1, at_clock: 1", "at_s at_clock"),
        ("kind: crash, at_s: 1", "faults[0].worker:"),
        ("kind: crash, worker: worker, at_s: 1", "worker 'worker' 'worker-"),
        ("kind: kill", "at_s mean_gap_s"),
        ("kind: kill, at_s: 1, times: 2", "times at_s times"),
        ("kind: kill, at_s: 1, end_s: 2", "at_s moment"),
        ("kind: kill, times: 2", "times end_s"),
        ("kind: kill, mean_gap_s: 1, start_s: 9, end_s: 5", "(5) after (9)"),
        ("kind: kill, at_s: 1, workers: [worker], count: 5", "count: 5 4 workers"),
    ],
}
"""Where -> what is wrong there, and what the message names."""


@pytest.mark.parametrize(
    ("text", "says"), [(block % text, says) for block in WRONG for text, says in WRONG[block]]
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        config.parse(text, source="x.yaml")
    assert len(str(raised.value).splitlines()) <= 2


OUT_OF_BOUNDS = """
    workers.0.count=0 workers.0.max_batch=0 workers.0.speed=0 workers.0.step_s=-1
    workers.0.resources.tpu=0 workers.0.jitter.tail=1
    workers.0.link.latency_s=-1 workers.0.link.bandwidth_bytes_per_s=0
    network.server_bandwidth_bytes_per_s=-5 network.update_s=.inf
    update.phases.asp.lr=0
    cluster.server_shards=0 cluster.min_workers=0
    checkpoint.every_s=0 checkpoint.every_s=.nan
    checkpoint.every_progress=0 checkpoint.every_progress=1.1
    faults.0.factor=0 faults.0.start_s=-1 faults.0.count=0 faults.1.mean_gap_s=0
    faults.2.added_s=-1
"""


@pytest.mark.parametrize("override", OUT_OF_BOUNDS.split())
def test_a_number_out_of_its_bounds_is_named_by_its_path(override):
    text = f"""
        workers: [{{jitter: {{distribution: pareto}}}}]
        faults: [{{{SLOW}}}, {{kind: kill, at_s: 1}}, {{kind: latency, added_s: 1}}]
    """
    path = re.sub(r"\.(\d)", r"[\1]", override.partition("=")[0])
    with pytest.raises(ConfigError, match=naming(f"x.yaml: {path}: ")) as raised:
        config.parse(text, [override], source="x.yaml")
    assert len(str(raised.value).splitlines()) <= 2


@pytest.mark.parametrize("given", [".inf", "inf", "'inf'"])
def test_no_tolerance_is_written_in_either_way(given):
    """And what is written down is read again."""
    experiment = config.parse(
        f"paradigm: {{name: hybrid, k: 1, staleness_tolerance: {given}}}", source="x.yaml"
    )
    assert experiment.paradigm.make().parameters()["staleness_tolerance"] == "inf"
    assert experiment.paradigm.label == "hybrid(k=1, staleness_tolerance=inf)"
    assert config.parse(experiment.to_yaml(), source="x.yaml") == experiment


@pytest.mark.parametrize(
    "text",
    [
        f"faults: [{{{SLOW}, times: 2, lasts_s: 1, end_s: 5}}, {{{SLOW}, clocks: [3, null]}}]",
        f"faults: [{{{CRASH}, at_clock: 0}}, {{{DRIFT}, period_s: 2}}]",
        "paradigm: {name: lagtuner, s_upper: 9}\nworkers: [{count: 2, speed: 0.5}]",
        """
            update: {momentum: 0.9, delay_compensation: adaptive, phases: {asp: {momentum: 0.5}}}
            paradigm: sync-switch
        """,
    ],
)
def test_the_resolved_experiment_is_a_file_that_says_the_same(text):
    experiment = config.parse(text, source="x")
    assert config.parse(experiment.to_yaml(), source="y") == experiment


def test_a_phase_has_the_settings_of_all_but_its_own():
    update = {"momentum": 0.9, "delay_compensation": "adaptive", "phases": {"asp": {"momentum": 0}}}
    experiment = config.validate({"update": update, "paradigm": "sync-switch"})
    assert experiment.update.in_phase("asp") == config.Update(
        momentum=0, delay_compensation={"name": "adaptive"}
    )


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    for name in ("nothing.yaml", "binary.yaml"):
        with pytest.raises(ConfigError, match=name):
            config.load(tmp_path / name)


def test_overrides_reach_into_mappings_lists_and_short_forms():
    experiment = config.parse(
        "paradigm: ssp\nworkers: [{}, {name: b}]",
        ["paradigm.staleness=5", "workers.1.count=3", "update.lr=0.5", "data=mnist"],
        source="x",
    )
    assert experiment.paradigm.make().parameters() == {"staleness": 5}
    assert experiment.workers[1].count == 3
    assert experiment.update.lr == 0.5
    assert experiment.data.name == "mnist"


@pytest.mark.parametrize(
    "override",
    ["update.lr", "=1", "workers.7.count=1", "workers.x=1", "seed.a=1", "seed.a.b=1", "seed=[1"],
)
def test_overrides_that_fit_nowhere(override):
    with pytest.raises(ConfigError, match="--set"):
        config.parse("workers: [{}]\nseed: 1", [override], source="x")


def test_the_place_of_checkpoints_is_written_without_its_secrets():
    text = "checkpoint: {every_s: 60, output: 's3://key:secret@bucket/x?token=a'}"
    checkpoint = config.parse(text, source="x.yaml").checkpoint
    assert checkpoint.output == "s3://key:secret@bucket/x?token=a"
    resolved = config.parse(text, source="x.yaml").to_yaml()
    assert "s3://***@bucket/x?token=***" in resolved
    assert config.parse("seed: 1", source="x.yaml").checkpoint is None


@pytest.mark.parametrize(
    ("workload", "samples"),
    [({"epochs": 2.5}, 2500), ({"samples": 77}, 77), ({"iterations_per_worker": 3}, 150)],
)
def test_a_workload_in_samples(workload, samples):
    settings = {"workload": workload, "workers": [{"count": 5}], "batch_size": 10}
    assert config.validate(settings).workload_samples(1000) == samples


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, 1),
        ({"gpus": 0.25}, 1),
        ({"gpus": 4}, 4),
        ({"gpus": 4, "devices_per_worker": 4}, 4),
        ({"devices_per_worker": 2}, 2),
    ],
)
def test_a_worker_has_a_device_a_gpu_unless_it_says_so(settings, devices):
    assert config.WorkerGroup(**settings).devices == devices


def test_spaces_in_a_label_selector_are_not_part_of_a_label():
    [selector] = config.WorkerGroup(label_selector={"zone": "!in(a, b)"}).label_selector.items()
    assert selector == ("zone", "!in(a,b)")


def test_marks_reach_from_0_to_1():
    assert config.EvaluationPlan(marks=4).progress_marks() == [0, 0.25, 0.5, 0.75, 1]


def test_labels_name_the_parameters_that_were_given():
    choice = config.ParadigmChoice.model_validate({"name": "lagtuner", "bound": "literal"})
    assert choice.label == "lagtuner(bound=literal)"
    inner = {"name": "ringmaster", "paradigm": {"name": "ssp", "staleness": 1}, "staleness": 2}
    assert (
        config.ParadigmChoice(name="ringmaster", paradigm=inner).label
        == "ringmaster(paradigm=ringmaster(paradigm=ssp(staleness=1), staleness=2))"
    )
    assert config.ParadigmChoice(name="tests.builders.paradigms:Patient").label == "patient"


def test_balanced_is_told_of_the_groups_and_what_a_user_says_of_one_counts():
    experiment = config.validate(
        {
            "paradigm": {"name": "balanced", "workers": {"slow": {"per_sample_s": 2}}},
            "workers": [
                {"name": "fast", "max_batch": 64},
                {"name": "slow", "batch_size": 8, "fixed_s": 1, "per_sample_s": 1},
            ],
        }
    )
    assert experiment.make(experiment.paradigm).workers == {
        "fast": {"batch_size": 32, "max_batch": 64},
        "slow": {"batch_size": 8, "fixed_s": 1, "per_sample_s": 2, "floor_s": 0},
    }


@pytest.mark.parametrize(
    ("given", "published", "by_worker", "written"),
    [
        (True, True, False, True),
        ("no", False, False, False),
        ({"per_worker_histograms": True}, True, True, None),
        ({"published": False}, False, False, False),
    ],
)
def test_metrics_have_a_short_form(given, published, by_worker, written):
    """As older files and records have it."""
    experiment = config.validate({"cluster": {"metrics": given}})
    metrics = experiment.cluster.metrics
    assert (metrics.published, metrics.per_worker_histograms) == (published, by_worker)
    plain = experiment.plain()
    assert written is None or plain["cluster"]["metrics"] is written
    assert config.validate(plain) == experiment


@pytest.mark.parametrize(
    ("block", "off", "on", "instead"),
    [
        ("network", {"sharing": "fair"}, {"sharing": "first-come"}, "TCP"),
        ("cluster", {"task_events": False}, {"task_events": True}, "trace"),
        ("update.phases.asp", {"combine": None}, {"combine": "sum"}, "update.combine"),
        (
            "network.phases.asp",
            {"pull_round_trips": None},
            {"pull_round_trips": 1},
            "network.pull_round_trips",
        ),
    ],
)
def test_a_setting_that_is_gone_is_read_from_records_and_answered_in_files(block, off, on, instead):
    def experiment(setting):
        for name in reversed(block.split(".")):
            setting = {name: setting}
        return config.validate({"engine": "virtual", "paradigm": "sync-switch"} | setting)

    assert experiment(off) == experiment({})
    with pytest.raises(ConfigError, match=naming(f"{block}: {next(iter(on))}: {instead}")):
        experiment(on)


def test_faults_by_seconds_are_read_from_records_of_former_settings():
    drift = {"kind": "drift", "added_s": 1, "period_s": 1, "start_s": 3}
    former = ("start_clock", "lasts_clocks", "mean_gap_clocks", "end_clock", "period_clocks")
    recorded = config.validate({"faults": [drift | dict.fromkeys(former)]})
    assert recorded == config.validate({"faults": [drift]})
