"""Experiment files: what is wrong is answered with its path, its value and what is allowed."""

import pytest

from raysync import config
from raysync.errors import ConfigError
from tests.builders.messages import naming


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paradigm: spp", "x.yaml: paradigm: paradigm 'spp' 'ssp'"),
        ("paradigm: {name: lagtuner, s_lower: 9, s_upper: 3}", "s_upper"),
        ("paradigm: {name: ssp, staleness: -1}", "0 -1"),
        ("paradigms: [bsp, {name: ssp, stalenes: 3}]", "paradigms[1]: 'staleness'"),
        ("paradigms: []", "paradigms:"),
        ("paradigms: [bsp, asp, bsp]", "bsp asp bsp"),
        ("paradigm: {name: hybrid, k: 5}", "paradigm: hybrid: k: 5 4 1 4"),
        ("paradigm: {name: hybrid, k: 2}\nworkers: [{}]", "hybrid: k: 2 1 1 1"),
        ("paradigms: [bsp, {name: k-async, k: 9}]", "paradigms[1]: k-async: k: 9 4"),
        ("paradigm: {name: k-sync, k: 5}", "paradigm: k-sync: k: 5 4 1 4"),
        ("paradigm: {name: backup-workers, backups: 4}", "backup-workers: backups: 4 4 0 3"),
        (
            "paradigm: {name: ringmaster, paradigm: {name: k-sync, k: 5}}",
            "ringmaster: k-sync: k: 5 4 1",
        ),
        ("paradigm: {name: hybrid, k: 0}", "hybrid: k: 1 'all' 0"),
        ("paradigm: {name: hybrid, k: some}", "hybrid: k: 'all' 'some'"),
        ("paradigm: {name: hybrid, staleness_tolerance: -1}", "tolerance: 0 'inf' -1"),
        ("paradigm: {name: hybrid, staleness_tolerance: -.inf}", "tolerance:"),
        ("paradigm: {name: hybrid, pull_interval: 0}", "pull_interval: 1 0"),
        ("paradigm: {name: hybrid, snapshot: none}", "snapshot: 'worker' 'global' 'none'"),
        ("paradigm: {name: hybrid, tolerance: 1}", "hybrid: 'tolerance' 'staleness_tolerance'"),
        ("paradigm: {name: hybrid, updates: 1}", "hybrid: 'updates'"),
        ("paradigm: {name: k-batch-sync, k: 0}", "k-batch-sync: k: 1 0"),
        ("paradigm: {name: backup-workers, backups: -1}", "backups: 0 -1"),
        ("paradigm: {name: ringmaster, staleness: -1}", "ringmaster: staleness: 0 -1"),
        ("paradigm: {name: ringmaster, paradigm: 3}", "ringmaster: paradigm: 3"),
        ("workers: [{count: 0}]", "workers[0].count: 0"),
        ("workers: []", "workers: 1"),
        ("workers: [{cuont: 1}]", "workers[0].cuont: 'cuont' 'count'"),
        ("workers: [{jitter: {sgima: 1}}]", "workers[0].jitter.sgima: 'sigma'"),
        ("workers: [{name: a}, {name: a}]", "different names"),
        ("workers: [{speed: 2}]", "speed 1 step_s per_sample_s flops_per_s"),
        ("lr: 1", "x.yaml: lr: 'lr' update.lr"),
        ("speed: 1", "workers.*.speed"),
        ("update: {warmup: 0.1}", "update.warmup: 'warmup' update.schedule.warmup"),
        ("output: s3:/bucket/runs", "output: URI s3://bucket/runs 's3:/bucket/runs'"),
        ("seeds: 3", "seeds: 3"),
        ("updat: 1", "updat: 'updat' 'update'"),
        ("update: {combine: sum}", "scales twice"),
        ("update: {nesterov: true}", "nesterov"),
        ("update: {schedule: {name: cosin}}", "'cosine' 'inverse-sqrt' 'cosin'"),
        ("update: {momentum_ramp: {name: linear, over: 0.1}}", "0 momentum 0"),
        ("update: {momentum: 0.9, momentum_ramp: linear}", "update.momentum_ramp.over:"),
        ("update: {momentum: 0.9, momentum_ramp: {name: exponential, over: 0.1}}", "start 0"),
        ("update: {delay_compensation: adaptiv}", "'constant' 'adaptive' 'adaptiv'"),
        ("update: {delay_compensation: {strength: 0}}", "update.delay_compensation.strength: 0 0"),
        ("update: {optimizer: mla}", "update: mla momentum 0"),
        ("local: {optimizer: {name: delayed-nesterov, every: 4}}", "local: delayed momentum 0"),
        (
            "update: {optimizer: mla, momentum: 0.9, phases: {asp: {momentum: 0}}}",
            "update: phases.asp: mla momentum 0",
        ),
        ("update: {staleness_scaling: linear}", "'none' 'inverse' 'linear'"),
        ("update: {staleness_scaling: {name: power, exponent: 0}}", "exponent: 0 0"),
        ("update: {phases: {asp: {lr: 1}}}", "update.phases: 'asp' phases"),
        ("update: {phases: {aps: {lr: 1}}}\nparadigm: sync-switch", "update.phases: 'aps' 'asp'"),
        ("update: {phases: {bps: {}}}\nparadigms: [bsp, sync-switch]", "'bsp' bsp"),
        ("update: {phases: {asp: {lr: 0}}}", "update.phases.asp.lr: 0 0"),
        ("update: {phases: {asp: {momentun: 0}}}", "update.phases.asp.momentun: 'momentum'"),
        (
            "update: {combine: sum, lr_scaling: none, phases: {asp: {lr_scaling: linear}}}",
            "update: phases.asp: combine: sum lr_scaling:",
        ),
        (
            "update: {momentum: 0.9, nesterov: true, phases: {asp: {momentum: 0}}}",
            "phases.asp: nesterov momentum",
        ),
        ("workload: {epochs: 1, samples: 3}", "workload:"),
        ("workload: {}", "workload:"),
        ("a: [", "x.yaml: YAML"),
        ("- 1", "mapping"),
        ("target: {metric: accuracy, at_least: 1.5}", "target: 0 1 1.5"),
        ("target: {metric: accuracy, at_most: 0.5}", "target: at_least 0 1"),
        ("target: {metric: loss, at_least: 1}", "target: loss better: at_most"),
        ("target: {metric: f1}", "target: at_least at_most"),
        ("target: {metric: f1, at_least: 1, at_most: 2}", "target: at_least at_mo"),
        ("target: {at_least: 0.9}", "target.metric:"),
        ("target: {metric: f1, at_least: .nan}", "target.at_least:"),
        ("target_accuracy: 0.9", "'target_accuracy'"),
        ("name: a/b", "name:"),
        ("workers: [{gpus: 1.5}]", "workers[0]: gpus: 1 1.5"),
        (
            "workers: [{gpus: 2, devices_per_worker: 4}]",
            "devices_per_worker: 4 gpus: 2 gpus: 4 gpus: 0",
        ),
        ("workers: [{gpus: 0.5, devices_per_worker: 2}]", "devices_per_worker: 2 gpus: 0.5"),
        ("workers: [{devices_per_worker: 8}]\nbatch_size: 6", "batch_size: 6 8"),
        (
            "workers: [{name: slow, devices_per_worker: 4, batch_size: 2}]",
            "workers: slow: batch_size: 2 4",
        ),
        ("workers: [{batch_size: 8, max_batch: 4}]", "batch_size: 8 max_batch: 4"),
        ("workers: [{max_batch: 0}]", "max_batch: 1"),
        ("workers: [{name: small, max_batch: 16}]", "batch_size: 32 16 'small' batch_size"),
        (
            "paradigm: {name: sync-switch, batch_sizes: {asp: 64}}\nworkers: [{max_batch: 32}]",
            "paradigm sync-switch: batch_sizes.asp: 64 32",
        ),
        (
            "paradigm: {name: balanced, multiple: 5}",
            "paradigm: balanced: multiple: batch_size 'worker' 32 multiple 5",
        ),
        (
            "paradigm: {name: balanced, multiple: 16}\nworkers: [{name: w, batch_size: 8}]",
            "multiple: batch_size 'w' 8 multiple 16",
        ),
        (
            "paradigm: {name: balanced, workers: {fsat: {devices: 2}}}\nworkers: [{name: fast}]",
            "balanced: workers: 'fsat' 'fast'",
        ),
        ("paradigm: {name: balanced, workers: [worker]}", "balanced: workers:"),
        ("paradigm: {name: balanced, paradigm: decoupled}", "balanced: paradigm: decoupled"),
        (
            "paradigm: {name: balanced, paradigm: {name: sync-switch, batch_sizes: {asp: 8}}}",
            "balanced: paradigm: sync-switch sync-switch: batch_sizes",
        ),
        ("paradigm: {name: balanced, paradigm: balanced}", "balanced: paradigm: balanced balanced"),
        (
            "paradigm: {name: balanced, paradigm: {name: k-sync, k: 5}}",
            "balanced: k-sync: k: 5 4 1",
        ),
        ("workers: [{jitter: {distribution: empirical}}]", "distribution: empirical 0"),
        ("workers: [{jitter: {samples: [1, 2]}}]", "distribution: 2 samples"),
        ("workers: [{jitter: {distribution: empirical, samples: [1, 0]}}]", "samples[1] 0 0"),
        ("workers: [{jitter: {distribution: pareto, tail: 1}}]", "tail: 1"),
        ("faults: [{kind: speed-drift, sigma: 0.1}]", "faults[0].period_s"),
        ("workers: [{fixed_s: 0.1, step_s: 1}]", "fixed_s: 0.1 per_sample_s"),
        ("workers: [{floor_s: 0.1}]", "floor_s: 0.1 per_sample_s"),
        (
            "workers: [{per_sample_s: 0.1, step_s: 1}]",
            "step_s per_sample_s flops_per_s step_s per_sample_s",
        ),
        ("workers: [{accelerator_type: A100}]", "accelerator_type: A100"),
        ("workers: [{resources: {GPU: 1}}]", "resources: GPU"),
        ("workers: [{resources: {tpu: 0}}]", "resources.tpu: 0"),
        ("workers: [{label_selector: {zone: 'in(a'}}]", "workers[0].label_selector.zone: 'in(a'"),
        ("workers: [{fallback_label_selectors: [{zone: a}]}]", "allowed"),
        ("workers: [{precision: fp8}]", "'tf32' 'bf16' 'fp8'"),
        ("cluster: {server_shards: 0}", "server_shards: 0"),
        ("cluster: {server_shards: auto}", "server_shards: 'auto'"),
        ("cluster: {server_placement: spread, server_label_selector: {a: b}}", "nodes"),
        ("cluster: {min_workers: 0}", "min_workers: 0"),
        ("cluster: {min_workers: 5}", "cluster.min_workers: 5 4"),
        ("cluster: {server_placement: with-workers, server_label_selector: {a: b}}", "nodes"),
        ("timing: only", "timing: engine:"),
        ("engine: simulated", "'ray' 'virtual' 'simulated'"),
        ("workers: [{speed: 0}]", "workers[0].speed: 0 0"),
        ("workers: [{step_s: -1}]", "workers[0].step_s: -1"),
        (
            "workers: [{step_s: 1, flops_per_s: 1}]",
            "step_s per_sample_s flops_per_s step_s flops_per_s",
        ),
        ("workers: [{step_s: 1, trace: [1]}]", "step_s trace"),
        (
            "workers: [{jitter: {distribution: gamma}}]",
            "workers[0].jitter.distribution: 'empirical' 'gamma'",
        ),
        ("workers: [{link: {latency_s: -1}}]", "workers[0].link.latency_s: -1"),
        (
            "workers: [{link: {bandwidth_bytes_per_s: 0}}]",
            "workers[0].link.bandwidth_bytes_per_s: 0",
        ),
        ("network: {link: {latency: 1}}", "network.link.latency: 'latency' 'latency_s'"),
        (
            "network: {server_bandwidth_bytes_per_s: -5}",
            "network.server_bandwidth_bytes_per_s: 0 -5",
        ),
        ("network: {update_s: .inf}", "network.update_s:"),
        ("checkpoint: {}", "checkpoint: taken: every_s: 60"),
        ("checkpoint: {keep: 3}", "checkpoint:"),
        ("checkpoint: {every_s: 0}", "checkpoint.every_s: 0.001 0"),
        ("checkpoint: {every_s: .nan}", "checkpoint.every_s:"),
        ("checkpoint: {every_progress: 0}", "checkpoint.every_progress: 0 0"),
        ("checkpoint: {every_progress: 1.1}", "checkpoint.every_progress: 1.1"),
        ("checkpoint: {every_s: 1, keep: 0}", "checkpoint.keep: 0"),
        ("checkpoint: {every_s: 1, output: 's3:/x'}", "checkpoint.output: URI"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        config.parse(text, source="x.yaml")
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


SLOW, CRASH, DRIFT = (
    "kind: slow-down, factor: 2",
    "kind: crash, worker: worker-0",
    "kind: drift, added_s: 1",
)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("kind: slowdown, factor: 2", "faults[0]: kind 'slowdown' 'slow-down'"),
        ("factor: 2", "x.yaml: faults[0]: kind:"),
        ("kind: slow-down", "faults[0].factor:"),
        ("kind: slow-down, factro: 2, factor: 2", "faults[0].factro: 'factro' 'factor'"),
        ("kind: slow-down, factor: 0", "faults[0].factor: 0"),
        ("kind: latency, added_s: -1", "faults[0].added_s: -1"),
        (f"{SLOW}, start_s: -1", "faults[0].start_s: -1"),
        (f"{SLOW}, start_s: 1, clocks: [0, 2]", "faults[0]: clocks start_s"),
        (f"{SLOW}, clocks: [0, 2], times: 2, lasts_s: 2, end_s: 9", "clocks lasts_s"),
        (f"{SLOW}, clocks: [3, 3]", "(3) after (3)"),
        (f"{SLOW}, clocks: [-1, null]", "faults[0].clocks[0]: 0"),
        (f"{SLOW}, clocks: 20", "faults[0].clocks"),
        (f"{SLOW}, start_clock: 2", "faults[0]: start_clock: 2 clocks:"),
        (f"{SLOW}, lasts_clocks: 2", "faults[0]: lasts_clocks: 2 clocks:"),
        (f"{SLOW}, mean_gap_clocks: 2, lasts_s: 1", "faults[0]: mean_gap_clocks: 2 mean_gap_s"),
        (f"{SLOW}, times: 2, lasts_s: 1, end_clock: 9", "faults[0]: end_clock: 9 end_s"),
        (f"{SLOW}, times: 2, mean_gap_s: 1, lasts_s: 1, end_s: 9", "times mean_gap"),
        (f"{SLOW}, times: 2, end_s: 9", "lasts_s"),
        (f"{SLOW}, mean_gap_s: 9", "lasts_s"),
        (f"{SLOW}, times: 2, lasts_s: 9", "times end_s"),
        (f"{SLOW}, lasts_s: 2, end_s: 9", "mean_gap"),
        (f"{SLOW}, times: 2, lasts_s: 1, start_s: 9, end_s: 9", "(9) after (9)"),
        (f"{SLOW}, count: 0", "faults[0].count: 0"),
        (f"{SLOW}, count: 5", "faults[0]: count: 5 4"),
        (f"{SLOW}, workers: [worker-1], count: 2", "faults[0]: count: 2 1"),
        (f"{SLOW}, workers: [wroker]", "faults[0]: 'wroker' 'worker' worker-0 worker-3"),
        (f"{SLOW}, workers: [worker-4]", "'worker-4' 'worker-3'"),
        (DRIFT, "faults[0].period_s"),
        (f"{DRIFT}, period_clocks: 1", "faults[0]: period_clocks: 1 period_s"),
        (CRASH, "at_s at_clock"),
        (f"{CRASH}, at_s: 1, at_clock: 1", "at_s at_clock"),
        ("kind: crash, at_s: 1", "faults[0].worker:"),
        ("kind: crash, worker: worker, at_s: 1", "worker 'worker' 'worker-"),
        (f"{CRASH}, at_s: 1, rejoin_after: 1", "'rejoin_after_s'"),
        ("kind: kill", "at_s mean_gap_s"),
        ("kind: kill, at_s: 1, times: 2", "times at_s times"),
        ("kind: kill, at_s: 1, end_s: 2", "at_s moment"),
        ("kind: kill, times: 2", "times end_s"),
        ("kind: kill, mean_gap_s: 1, start_s: 9, end_s: 5", "(5) after (9)"),
        ("kind: kill, mean_gap_s: 0", "faults[0].mean_gap_s: 0"),
        ("kind: kill, at_s: 1, worker: worker-0", "'workers'"),
        ("kind: kill, at_s: 1, workers: [worker], count: 5", "count: 5 4 workers"),
    ],
)
def test_what_is_wrong_with_a_fault_is_named(fault, says):
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        config.parse(f"faults: [{{{fault}}}]", source="x.yaml")
    assert len(str(raised.value).splitlines()) <= 2


def test_a_fault_that_is_none():
    for text in (
        "faults: [crash]",
        "faults: {kind: crash}",
        "faults: crash",
        "faults: [[]]",
        "1: 2",
    ):
        with pytest.raises(ConfigError) as raised:
            config.parse(text, source="x.yaml")
        assert len(str(raised.value).splitlines()) <= 2


def test_faults_survive_the_resolved_experiment():
    text = (
        f"faults: [{{{SLOW}, times: 2, lasts_s: 1, end_s: 5}}, {{{CRASH}, at_clock: 0}}, {{{DRIFT},"
        f" period_s: 2}}, {{{SLOW}, clocks: [3, null]}}]"
    )
    experiment = config.parse(text, source="x")
    assert config.parse(experiment.to_yaml(), source="y").faults == experiment.faults


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        config.load(tmp_path / "binary.yaml")


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
    [
        "update.lr",
        "=1",
        "workers.7.count=1",
        "workers.x=1",
        "seed.a=1",
        "seed.a.b=1",
        "update.lr=[1",
    ],
)
def test_overrides_that_fit_nowhere(override):
    with pytest.raises(ConfigError, match="--set"):
        config.parse("workers: [{}]\nseed: 1", [override], source="x")


def test_the_resolved_experiment_is_a_file_that_says_the_same():
    experiment = config.parse(
        "paradigm: {name: lagtuner, s_upper: 9}\nworkers: [{count: 2, speed: 0.5}]", source="x"
    )
    assert config.parse(experiment.to_yaml(), source="y") == experiment
    phases = config.parse(
        "update: {momentum: 0.9, delay_compensation: adaptive}\nparadigm: sync-switch",
        ["update.phases.asp.momentum=0.5"],
        source="x",
    )
    assert config.parse(phases.to_yaml(), source="y") == phases
    assert phases.update.in_phase("asp") == config.Update(
        momentum=0.5, delay_compensation={"name": "adaptive"}
    )


def test_the_place_of_checkpoints_is_written_without_its_secrets():
    text = "checkpoint: {every_s: 60, output: 's3://key:secret@bucket/x?token=a'}"
    checkpoint = config.parse(text, source="x.yaml").checkpoint
    assert checkpoint.output == "s3://key:secret@bucket/x?token=a"
    resolved = config.parse(text, source="x.yaml").to_yaml()
    assert "s3://***@bucket/x?token=***" in resolved
    assert config.parse("seed: 1", source="x.yaml").checkpoint is None


def test_workloads():
    def samples(workload):
        return config.validate(
            {"workload": workload, "workers": [{"count": 5}], "batch_size": 10}
        ).workload_samples(1000)

    assert samples({"epochs": 2.5}) == 2500
    assert samples({"samples": 77}) == 77
    assert samples({"iterations_per_worker": 3}) == 150


def test_slots_are_named_after_their_group():
    experiment = config.validate({"workers": [{"name": "a", "count": 2}, {"name": "b"}]})
    assert list(experiment.slots()) == ["a-0", "a-1", "b-0"]
    assert experiment.worker_count == 3


def test_a_worker_has_a_device_a_gpu_unless_it_says_so():
    groups = [
        ({}, 1),
        ({"gpus": 0.25}, 1),
        ({"gpus": 4}, 4),
        ({"gpus": 4, "devices_per_worker": 4}, 4),
        ({"devices_per_worker": 2}, 2),
    ]
    assert [config.WorkerGroup(**settings).devices for settings, _ in groups] == [
        devices for _, devices in groups
    ]


def test_spaces_in_a_label_selector_are_not_part_of_a_label():
    assert config.WorkerGroup(label_selector={"zone": "!in(a, b)"}).label_selector == {
        "zone": "!in(a,b)"
    }


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


def test_histograms_of_nothing_are_refused():
    wrong = {"published": False, "per_worker_histograms": True}
    with pytest.raises(ConfigError, match=r"cluster\.metrics"):
        config.validate({"cluster": {"metrics": wrong}})


@pytest.mark.parametrize(
    ("block", "off", "on", "says"),
    [
        ("network", {"sharing": "fair"}, {"sharing": "first-come"}, "network: sharing: TCP"),
        ("cluster", {"task_events": False}, {"task_events": True}, "cluster: task_events: trace"),
        (
            "update.phases.asp",
            {"combine": None},
            {"combine": "sum"},
            "update.phases.asp: combine: update.combine",
        ),
        (
            "network.phases.asp",
            {"pull_round_trips": None},
            {"pull_round_trips": 1},
            "network.phases.asp: pull_round_trips: network.pull_round_trips",
        ),
    ],
)
def test_a_setting_that_is_gone_is_read_from_records_and_answered_in_files(block, off, on, says):
    def experiment(setting):
        for name in reversed(block.split(".")):
            setting = {name: setting}
        return config.validate({"engine": "virtual", "paradigm": "sync-switch"} | setting)

    assert experiment(off) == experiment({})
    with pytest.raises(ConfigError, match=naming(says)):
        experiment(on)


def test_faults_by_seconds_are_read_from_records_of_former_settings():
    drift = {"kind": "drift", "added_s": 1, "period_s": 1, "start_s": 3}
    former = ("start_clock", "lasts_clocks", "mean_gap_clocks", "end_clock", "period_clocks")
    recorded = config.validate({"faults": [drift | dict.fromkeys(former)]})
    assert recorded == config.validate({"faults": [drift]})
