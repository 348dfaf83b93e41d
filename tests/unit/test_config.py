"""Experiment files: what is wrong is answered with its path, its value and what is allowed."""

import pytest

from raysync import config
from raysync.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paradigm: spp", "x.yaml: paradigm: unknown paradigm 'spp'; did you mean 'ssp'"),
        ("paradigm: {name: lagtuner, s_lower: 9, s_upper: 3}", "must not be above s_upper"),
        ("paradigm: {name: ssp, staleness: -1}", "greater than or equal to 0; got -1"),
        (
            "paradigms: [bsp, {name: ssp, stalenes: 3}]",
            r"paradigms\[1\]: .*did you mean 'staleness'",
        ),
        ("paradigms: []", "paradigms: "),
        ("paradigms: [bsp, asp, bsp]", "each can be listed only once, got bsp, asp, bsp"),
        (
            "paradigm: {name: hybrid, k: 5}",
            "paradigm: hybrid: k: 5 pushes, of 4 workers; allowed: 1 to 4, or all",
        ),
        (
            "paradigm: {name: hybrid, k: 2}\nworkers: [{}]",
            "hybrid: k: 2 pushes, of 1 worker; allowed: 1 to 1, or all",
        ),
        (
            "paradigms: [bsp, {name: k-async, k: 9}]",
            r"paradigms\[1\]: k-async: k: 9 pushes, of 4 workers",
        ),
        ("paradigm: {name: k-sync, k: 5}", "paradigm: k-sync: k: 5 workers of 4; allowed: 1 to 4"),
        (
            "paradigm: {name: backup-workers, backups: 4}",
            "backup-workers: backups: 4 of 4 workers; allowed: 0 to 3",
        ),
        (
            "paradigm: {name: ringmaster, paradigm: {name: k-sync, k: 5}}",
            "ringmaster: k-sync: k: 5 workers of 4; allowed: 1",
        ),
        (
            "paradigm: {name: hybrid, k: 0}",
            "hybrid: k: .*greater than or equal to 1, or: .*'all'; got 0",
        ),
        (
            "paradigm: {name: hybrid, k: some}",
            "hybrid: k: .*valid integer.*, or: .*'all'; got 'some'",
        ),
        (
            "paradigm: {name: hybrid, staleness_tolerance: -1}",
            "tolerance: .*greater than or equal to 0, or: .*'inf'; got -1",
        ),
        ("paradigm: {name: hybrid, staleness_tolerance: -.inf}", "tolerance: .*got -inf"),
        (
            "paradigm: {name: hybrid, pull_interval: 0}",
            "pull_interval: .*greater than or equal to 1; got 0",
        ),
        (
            "paradigm: {name: hybrid, snapshot: none}",
            "snapshot: .*'worker' or 'global'; got 'none'",
        ),
        (
            "paradigm: {name: hybrid, tolerance: 1}",
            "hybrid: unknown parameter 'tolerance'; did you mean 'staleness_tolerance'",
        ),
        ("paradigm: {name: hybrid, updates: 1}", "hybrid: unknown parameter 'updates'"),
        (
            "paradigm: {name: k-batch-sync, k: 0}",
            "k-batch-sync: k: .*greater than or equal to 1; got 0",
        ),
        (
            "paradigm: {name: backup-workers, backups: -1}",
            "backups: .*greater than or equal to 0; got -1",
        ),
        (
            "paradigm: {name: ringmaster, staleness: -1}",
            "ringmaster: staleness: .*greater than or equal to 0; got -1",
        ),
        ("paradigm: {name: ringmaster, paradigm: 3}", "ringmaster: paradigm: .*got 3"),
        ("workers: [{count: 0}]", r"workers\[0\].count: .*got 0"),
        ("workers: []", "workers: .*at least 1"),
        (
            "workers: [{cuont: 1}]",
            r"workers\[0\].cuont: unknown setting 'cuont'; did you mean 'count'",
        ),
        ("workers: [{jitter: {sgima: 1}}]", r"workers\[0\].jitter.sgima: .*did you mean 'sigma'"),
        ("workers: [{name: a}, {name: a}]", "different names"),
        (
            "workers: [{speed: 2}]",
            "has a speed above 1 and no step_s, per_sample_s, flops_per_s or trace",
        ),
        ("lr: 1", r"x.yaml: lr: unknown setting 'lr'; did you mean update.lr\?"),
        ("speed: 1", r"did you mean workers\.\*\.speed\?"),
        (
            "update: {warmup: 0.1}",
            r"update.warmup: unknown setting 'warmup'; did you mean update.schedule.warmup\?",
        ),
        (
            "output: s3:/bucket/runs",
            "output: a URI is text with ://, such as s3://bucket/runs; .*got 's3:/bucket/runs'",
        ),
        ("seeds: 3", r"seeds: must be a list, \[..., ...\]; got 3"),
        ("updat: 1", "updat: unknown setting 'updat'; did you mean 'update'"),
        ("update: {combine: sum}", "scales twice"),
        ("update: {nesterov: true}", "nesterov needs a momentum"),
        ("update: {schedule: {name: cosin}}", "'cosine' or 'inverse-sqrt'; got 'cosin'"),
        (
            "update: {momentum_ramp: {name: linear, over: 0.1}}",
            "a rise from 0 needs a momentum above that, got 0",
        ),
        (
            "update: {momentum: 0.9, momentum_ramp: linear}",
            "update.momentum_ramp.over: Field required",
        ),
        (
            "update: {momentum: 0.9, momentum_ramp: {name: exponential, over: 0.1}}",
            "needs a start above 0",
        ),
        ("update: {delay_compensation: adaptiv}", "'constant' or 'adaptive'; got 'adaptiv'"),
        (
            "update: {delay_compensation: {strength: 0}}",
            "update.delay_compensation.strength: .*greater than 0; got 0",
        ),
        ("update: {staleness_scaling: linear}", "'none' or 'inverse'; got 'linear'"),
        (
            "update: {phases: {asp: {lr: 1}}}",
            "update.phases: 'asp', but none of the paradigms has phases",
        ),
        (
            "update: {phases: {aps: {lr: 1}}}\nparadigm: sync-switch",
            "update.phases: unknown phase 'aps'; did you mean 'asp'",
        ),
        (
            "update: {phases: {bps: {}}}\nparadigms: [bsp, sync-switch]",
            "did you mean 'bsp'.*\nAllowed: asp, bsp.",
        ),
        ("update: {phases: {asp: {lr: 0}}}", "update.phases.asp.lr: .*greater than 0; got 0"),
        (
            "update: {phases: {asp: {momentun: 0}}}",
            "update.phases.asp.momentun: unknown setting .*did you mean 'momentum'",
        ),
        (
            "update: {phases: {asp: {combine: sum}}}",
            "update: phases.asp: combine: sum with lr_scaling: linear scales twice",
        ),
        (
            "update: {momentum: 0.9, nesterov: true, phases: {asp: {momentum: 0}}}",
            "phases.asp: nesterov needs a momentum",
        ),
        ("workload: {epochs: 1, samples: 3}", "exactly one of"),
        ("workload: {}", "exactly one of"),
        ("a: [", "x.yaml: not YAML at line"),
        ("- 1", "an experiment file is a mapping"),
        (
            "target: {metric: accuracy, at_least: 1.5}",
            "target: .*above 0, to 1; got .* at least 1.5",
        ),
        ("target: {metric: accuracy, at_most: 0.5}", "target: .*give at_least above 0, to 1"),
        ("target: {metric: loss, at_least: 1}", "target: a smaller loss is better: give at_most"),
        ("target: {metric: f1}", "target: give either at_least or at_most"),
        ("target: {metric: f1, at_least: 1, at_most: 2}", "target: give either at_least or at_mo"),
        ("target: {at_least: 0.9}", "target.metric: Field required"),
        ("target: {metric: f1, at_least: .nan}", "target.at_least: .*finite"),
        ("target_accuracy: 0.9", "unknown setting 'target_accuracy'"),
        ("name: a/b", "name: "),
        (
            "workers: [{gpus: 1.5}]",
            r"workers\[0\]: gpus: must be below 1 or a whole number; got 1.5",
        ),
        (
            "workers: [{gpus: 2, devices_per_worker: 4}]",
            r"devices_per_worker: 4 with gpus: 2; .* gpus: 4 \(or gpus: 0",
        ),
        ("workers: [{gpus: 0.5, devices_per_worker: 2}]", "devices_per_worker: 2 with gpus: 0.5"),
        (
            "workers: [{devices_per_worker: 8}]\nbatch_size: 6",
            "batch_size: 6 samples cannot be shared by the 8 devices",
        ),
        (
            "workers: [{name: slow, devices_per_worker: 4, batch_size: 2}]",
            "workers: slow: batch_size: 2 samples cannot be shared by the 4 devices",
        ),
        ("workers: [{batch_size: 8, max_batch: 4}]", "batch_size: 8 is above max_batch: 4"),
        ("workers: [{max_batch: 0}]", "max_batch: .*greater than or equal to 1"),
        (
            "workers: [{name: small, max_batch: 16}]",
            r"batch_size: 32 is above the 16 samples .* group 'small' .* batch_size of its own",
        ),
        (
            "paradigm: {name: sync-switch, batch_sizes: {asp: 64}}\nworkers: [{max_batch: 32}]",
            "paradigm sync-switch: batch_sizes.asp: 64 is above the 32 samples",
        ),
        (
            "paradigm: {name: balanced, multiple: 5}",
            "paradigm: balanced: multiple: the batch_size of group 'worker', 32, is no multiple of"
            " 5",
        ),
        (
            "paradigm: {name: balanced, multiple: 16}\nworkers: [{name: w, batch_size: 8}]",
            "multiple: the batch_size of group 'w', 8, is no multiple of 16",
        ),
        (
            "paradigm: {name: balanced, workers: {fsat: {devices: 2}}}\nworkers: [{name: fast}]",
            "balanced: workers: unknown worker group 'fsat'; did you mean 'fast'",
        ),
        ("paradigm: {name: balanced, workers: [worker]}", "balanced: workers: .*valid dictionary"),
        ("paradigm: {name: balanced, paradigm: decoupled}", "balanced: paradigm: decoupled is a"),
        (
            "paradigm: {name: balanced, paradigm: {name: sync-switch, batch_sizes: {asp: 8}}}",
            r"balanced: paradigm: sync-switch sets batch sizes itself \(sync-switch: batch_sizes",
        ),
        (
            "paradigm: {name: balanced, paradigm: balanced}",
            r"balanced: paradigm: balanced sets batch sizes itself \(balanced",
        ),
        (
            "paradigm: {name: balanced, paradigm: {name: k-sync, k: 5}}",
            "balanced: k-sync: k: 5 workers of 4; allowed: 1",
        ),
        (
            "workers: [{jitter: {distribution: empirical}}]",
            "distribution: empirical and samples go together; .* 0 samples",
        ),
        ("workers: [{jitter: {samples: [1, 2]}}]", "got distribution: lognormal and 2 samples"),
        (
            "workers: [{jitter: {distribution: empirical, samples: [1, 0]}}]",
            r"samples\[1\].*greater than 0",
        ),
        ("workers: [{jitter: {distribution: pareto, tail: 1}}]", "tail: .*greater than 1"),
        (
            "faults: [{kind: speed-drift, sigma: 0.1}]",
            r"faults\[0\].*give one of period_s and period_clocks",
        ),
        ("workers: [{fixed_s: 0.1, step_s: 1}]", "fixed_s: 0.1 needs per_sample_s"),
        ("workers: [{floor_s: 0.1}]", "floor_s: 0.1 needs per_sample_s"),
        (
            "workers: [{per_sample_s: 0.1, step_s: 1}]",
            "give one of step_s, per_sample_s, flops_per_s and trace; got step_s and per_sample_s",
        ),
        ("workers: [{accelerator_type: A100}]", "accelerator_type: A100 needs gpus"),
        ("workers: [{resources: {GPU: 1}}]", "resources: GPU is set by gpus"),
        ("workers: [{resources: {tpu: 0}}]", "resources.tpu: .*greater than 0"),
        (
            "workers: [{label_selector: {zone: 'in(a'}}]",
            r"workers\[0\].label_selector.zone: .*got 'in\(a'",
        ),
        ("workers: [{fallback_label_selectors: [{zone: a}]}]", "every node is allowed already"),
        ("workers: [{precision: fp8}]", "'tf32' or 'bf16'; got 'fp8'"),
        ("cluster: {server_shards: 0}", "server_shards: .* got 0"),
        ("cluster: {server_shards: auto}", "server_shards: .* got 'auto'"),
        (
            "cluster: {server_placement: spread, server_label_selector: {a: b}}",
            "run on their nodes",
        ),
        ("cluster: {min_workers: 0}", "min_workers: .*got 0"),
        ("cluster: {min_workers: 5}", "cluster.min_workers: 5, but there are only 4 workers"),
        (
            "cluster: {server_placement: with-workers, server_label_selector: {a: b}}",
            "run on their nodes",
        ),
        ("timing: only", "timing: only needs engine: virtual"),
        ("engine: simulated", "'ray' or 'virtual'; got 'simulated'"),
        ("workers: [{speed: 0}]", r"workers\[0\].speed: .*greater than 0; got 0"),
        ("workers: [{step_s: -1}]", r"workers\[0\].step_s: .*got -1"),
        (
            "workers: [{step_s: 1, flops_per_s: 1}]",
            "give one of step_s, per_sample_s, flops_per_s and trace; got step_s and flops_per_s",
        ),
        ("workers: [{step_s: 1, trace: [1]}]", "got step_s and trace"),
        (
            "workers: [{jitter: {distribution: gamma}}]",
            r"workers\[0\].jitter.distribution: .*'empirical'; got 'gamma'",
        ),
        ("workers: [{link: {latency_s: -1}}]", r"workers\[0\].link.latency_s: .*got -1"),
        (
            "workers: [{link: {bandwidth_bytes_per_s: 0}}]",
            r"workers\[0\].link.bandwidth_bytes_per_s: .*got 0",
        ),
        (
            "network: {link: {latency: 1}}",
            "network.link.latency: unknown setting 'latency'; did you mean 'latency_s'",
        ),
        (
            "network: {server_bandwidth_bytes_per_s: -5}",
            "network.server_bandwidth_bytes_per_s: .*greater than 0; got -5",
        ),
        ("network: {update_s: .inf}", "network.update_s: .*finite"),
        ("checkpoint: {}", "checkpoint: say when checkpoints are taken: every_s: 60, "),
        ("checkpoint: {keep: 3}", "checkpoint: say when checkpoints are taken"),
        ("checkpoint: {every_s: 0}", "checkpoint.every_s: .*equal to 0.001; got 0"),
        ("checkpoint: {every_s: .nan}", "checkpoint.every_s: .*a finite number; got "),
        ("checkpoint: {every_progress: 0}", "checkpoint.every_progress: .*greater than 0; got 0"),
        ("checkpoint: {every_progress: 1.1}", "checkpoint.every_progress: .*got 1.1"),
        ("checkpoint: {every_s: 1, keep: 0}", "checkpoint.keep: .*got 0"),
        ("checkpoint: {every_s: 1, output: 's3:/x'}", "checkpoint.output: a URI is text with ://"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(ConfigError, match=says) as raised:
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
        (
            "kind: slowdown, factor: 2",
            r"faults\[0\]: unknown kind 'slowdown'; did you mean 'slow-down'\?\n"
            "Allowed: crash, drift, kill, latency, slow-down, speed-drift.",
        ),
        ("factor: 2", r"x.yaml: faults\[0\]: give its kind: crash, drift, kill, latency"),
        ("kind: slow-down", r"faults\[0\].factor: Field required"),
        (
            "kind: slow-down, factro: 2, factor: 2",
            r"faults\[0\].factro: unknown setting 'factro'; did you mean 'factor'",
        ),
        ("kind: slow-down, factor: 0", r"faults\[0\].factor: .*got 0"),
        ("kind: latency, added_s: -1", r"faults\[0\].added_s: .*got -1"),
        (f"{SLOW}, start_s: -1", r"faults\[0\].start_s: .*got -1"),
        (
            f"{SLOW}, start_s: 1, lasts_clocks: 2",
            r"faults\[0\]: start_s counts seconds and lasts_clocks clocks",
        ),
        (
            f"{SLOW}, mean_gap_clocks: 1, lasts_s: 2",
            "lasts_s counts seconds and mean_gap_clocks clocks",
        ),
        (
            f"{SLOW}, times: 2, mean_gap_s: 1, lasts_s: 1, end_s: 9",
            "give times or mean_gap, not both",
        ),
        (f"{SLOW}, times: 2, end_s: 9", "need lasts_s or lasts_clocks"),
        (f"{SLOW}, mean_gap_s: 9", "need lasts_s or lasts_clocks"),
        (f"{SLOW}, times: 2, lasts_s: 9", "times needs end_s or end_clock"),
        (f"{SLOW}, lasts_s: 2, end_s: 9", "an end needs times or mean_gap"),
        (
            f"{SLOW}, times: 2, lasts_s: 1, start_s: 9, end_s: 9",
            r"the end \(9\) must come after the start \(9\)",
        ),
        (f"{SLOW}, count: 0", r"faults\[0\].count: .*got 0"),
        (f"{SLOW}, count: 5", r"faults\[0\]: count: 5 of 4 workers"),
        (f"{SLOW}, workers: [worker-1], count: 2", r"faults\[0\]: count: 2 of 1 worker"),
        (
            f"{SLOW}, workers: [wroker]",
            r"faults\[0\]: unknown worker 'wroker'; did you mean 'worker'\?\n"
            "Allowed: worker-0 to worker-3",
        ),
        (f"{SLOW}, workers: [worker-4]", "unknown worker 'worker-4'; did you mean 'worker-3'"),
        (DRIFT, "give one of period_s and period_clocks"),
        (f"{DRIFT}, period_s: 1, period_clocks: 1", "give one of period_s and period_clocks"),
        (CRASH, "give one of at_s and at_clock"),
        (f"{CRASH}, at_s: 1, at_clock: 1", "give one of at_s and at_clock"),
        ("kind: crash, at_s: 1", r"faults\[0\].worker: Field required"),
        ("kind: crash, worker: worker, at_s: 1", "unknown worker 'worker'; did you mean 'worker-"),
        (f"{CRASH}, at_s: 1, rejoin_after: 1", "did you mean 'rejoin_after_s'"),
        ("kind: kill", "give one of at_s, mean_gap_s and times; got none"),
        ("kind: kill, at_s: 1, times: 2", "one of .* times; got at_s and times"),
        ("kind: kill, at_s: 1, end_s: 2", "at_s is one moment"),
        ("kind: kill, times: 2", "times needs end_s"),
        ("kind: kill, mean_gap_s: 1, start_s: 9, end_s: 5", r"end \(5\) must come after .* \(9\)"),
        ("kind: kill, mean_gap_s: 0", r"faults\[0\].mean_gap_s: .*got 0"),
        ("kind: kill, at_s: 1, worker: worker-0", "did you mean 'workers'"),
        ("kind: kill, at_s: 1, workers: [worker], count: 5", "count: 5 of 4 workers"),
    ],
)
def test_what_is_wrong_with_a_fault_is_named(fault, says):
    with pytest.raises(ConfigError, match=says) as raised:
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
        " period_s: 2}]"
    )
    experiment = config.parse(text, source="x")
    assert config.parse(experiment.to_yaml(), source="y").faults == experiment.faults


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match="no text"):
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
