"""What a user gets wrong is answered in one or two lines, exit status 2, and nothing is left
behind.
"""

import io
import os
import re
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import ray
from rich.console import Console

from raysync import cli, config
from raysync.cli import table
from raysync.cluster import connection, placement
from raysync.core.events import Joined
from raysync.core.journal import Entry, encode, header
from raysync.core.metrics import ACCURACY
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import make
from raysync.record.reader import load
from tests.builders.files import write
from tests.builders.messages import naming, tells


def test_a_virtual_run_from_the_command_line(call, tmp_path):
    """Says how long the steps were taken to last, who crashed, and which fault nobody met; the
    record is there.
    """
    text = """{name: v, timing: only, workers: [{name: a, count: 2}, {name: b, step_s: 1}],
        workload: {samples: 640},
        faults: [{kind: crash, worker: a-1, at_clock: 1},
        {kind: crash, worker: b-0, at_s: 1000}]}"""
    file = write(tmp_path / "x.yaml", text)
    code, out, err = call("run", file, "--engine=virtual", "--set=data.train_samples=50")
    assert code == 0, err
    assert tells(err, "'a' step")
    assert "s: a-1#1 is gone (crashed: " in err
    assert tells(err, "triggered: faults[1] {kind: worker: b-0 at_s: 1000.0}")
    assert "bsp" in out
    [record] = (tmp_path / "runs/v").iterdir()
    assert call("replay", str(record))[0] == 0


def test_a_comparison_finds_the_bottleneck_of_each_paradigm_once(call, tmp_path):
    text = """{name: v, engine: virtual, timing: only, workers: [{count: 2, step_s: 1}],
        batch_size: 1, workload: {samples: 80}, network: {update_s: 5}, paradigms: [asp, bsp],
        seeds: [0, 1]}"""
    code, out, err = call("compare", write(tmp_path / "x.yaml", text))
    assert code == 0, err
    assert tells(out, "asp: bottleneck server update")
    records = [load(path) for path in (tmp_path / "runs/v").iterdir() if path.is_dir()]
    found = {
        (record.config.paradigm.name, record.config.seed): record.summary.get("bottleneck")
        for record in records
    }
    assert found["asp", 0]["kind"] == found["bsp", 0]["kind"] == "server update"
    assert found["asp", 1] is found["bsp", 1] is None


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "paradigms",
            "bsp staleness=3 s_upper=15 [s_lower, pull_interval=1 batch_sizes={} k-async",
        ),
        ("models", "mlp hidden=(64,) lenet 62,006 1,727,962 3x32x32 char-lm tokens"),
        ("datasets", "digits mnist fashion-mnist cifar10 cifar100 synthetic text"),
        ("clusters", " ".join([*config.profiles(), "gtx1060"])),
    ],
)
def test_list(call, kind, names):
    code, out, _ = call("list", kind)
    assert code == 0
    assert all(name in out for name in names.split())
    assert "factory" not in out, "what it makes is shown"


ALL_AFTER_ANOTHER = """
import sys
from raysync.cli import main

for words in {words!r}:
    sys.argv = ["raysync", *words]
    try:
        main()
    except SystemExit as ended:
        print(f"<{{ended.code or 0}}>")
        print("<end>", file=sys.stderr)
"""


def answers(commands, folder, before="", **variables):
    """Exit status, output and errors of each command, in one process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", before + ALL_AFTER_ANOTHER.format(words=commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    *outs, _ = re.split(r"<(\d)>\n", done.stdout)
    *errors, _ = done.stderr.split("<end>\n")
    return [
        (int(code), out, err) for out, code, err in zip(outs[::2], outs[1::2], errors, strict=True)
    ]


def test_list_without_torch(tmp_path):
    """Models and data sets are made of torch: they ask for it in a line."""
    missing = "import sys; sys.modules['torch'] = None  # importing it raises ModuleNotFoundError"
    kinds = ("paradigms", "clusters", "models", "datasets")
    done = answers([["list", kind] for kind in kinds], tmp_path, missing)
    assert [code for code, _, _ in done] == [0, 0, 2, 2]
    assert "lagtuner" in done[0][1]
    assert "demo-4-unequal" in done[1][1]
    for _, _, err in done[2:]:
        [line] = err.splitlines()
        assert "pip install torch" in line


def test_a_terminal_that_knows_only_ascii(tmp_path):
    settings = "{output: é, engine: virtual, timing: only, workload: {samples: 320}, seeds: [0, 1]}"
    write(tmp_path / "x.yaml", settings)
    commands = [["compare", "x.yaml"], ["list", "models"], ["--help"]]
    done = answers(commands, tmp_path, PYTHONIOENCODING="ascii")
    assert len(done) == len(commands)
    for code, out, err in done:
        assert code == 0, err
        assert out.strip()
        assert "Traceback" not in err


def test_replay_shows_a_difference_and_exits_with_1(call, tmp_path):
    (tmp_path / "run").mkdir()
    joined = encode(Entry(Joined(at=0.0, worker="a#1"), ()))
    write(tmp_path / "run" / "journal.jsonl", f"{header(make('bsp'), 10)}\n{joined}\n")
    code, _, err = call("replay", "run")
    assert code == 1
    assert "Differs at event 1" in err


@pytest.fixture
def refused(call, tmp_path, monkeypatch):
    """What a run says where Ray cannot be joined at an address: one that a Ray job sets, or one in
    the file.
    """
    file = write(tmp_path / "x.yaml", "seed: 1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # by another test, in this process
    monkeypatch.setattr(connection, "CONNECT_S", 0.1)

    def refused(address, error="nobody answers", *, in_file=False):
        def init(**_):
            raise ConnectionError(error)

        monkeypatch.setattr(ray, "init", init)
        settings = ["--set", f"cluster.address={address}"] if in_file else []
        if not in_file:
            monkeypatch.setenv("RAY_ADDRESS", address)
        code, _, err = call("run", file, *settings)
        assert code == 2
        first, *_, reason = err.splitlines()
        assert tells(first, "Starting 4"), "at once: where Ray is there, the rest comes late"
        return reason

    return refused


@pytest.mark.parametrize("in_file", [False, True])
def test_a_cluster_that_is_not_there(refused, in_file):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    assert tells(refused(address, in_file=in_file), f"'{address}' refused")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("10.0.0.1:6379", "Version mismatch:\n    Ray: 2.54.0\nwith:\n    Ray: 2.60.0\n"),
        ("10.0.0.2:6379", "Failed to connect\nto 10.0.0.2"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_answered_in_a_line(
    refused, monkeypatch, address, error
):
    """Another version of Ray, and one that asks for a token."""
    monkeypatch.setattr(connection, "check_address", lambda _: None)
    assert tells(refused(address, error), f"{address} {error}")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://head:10001", "ray://head:10001 job submit"),
        ("http://127.0.0.1:8265", "'http://127.0.0.1:8265' URL"),
        ("not-an-address", "'not-an-address'"),
        ("LISTENING", "nobody answers"),
        ("127.0.0.1:99999999999", "cluster '127.0.0.1:99999999999'"),
    ],
)
def test_an_address_that_is_no_cluster(refused, address, says):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = f"127.0.0.1:{listening.getsockname()[1]}"
        assert tells(refused(address.replace("LISTENING", there)), says)


def test_the_address_of_the_dashboard_is_no_cluster(refused):
    """Ray would wait for minutes for what is not its control store."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as dashboard:
        Thread(target=dashboard.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{dashboard.server_port}"
        assert tells(refused(address), f"'{address}' HTTP HOST:6379")
        dashboard.shutdown()


def test_records_in_the_folder_of_a_job_are_warned_of(call, tmp_path, monkeypatch):
    said = "Ray deletes"
    short = "{engine: virtual, timing: only, workload: {samples: 320}, workers: [{step_s: 1}]}"
    run = ["run", write(tmp_path / "x.yaml", short)]
    assert said not in call(*run)[2]
    job = '{"metadata": {"job_submission_id": "raysubmit_1"}}'
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", job)
    assert call(*run)[2].count(said) == 1
    for kept in (str(tmp_path), f"file://{tmp_path}"):
        assert said not in call(*run, "--set", f"output={kept}")[2]


def test_commands_are_in_the_order_of_the_readme(call):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    in_readme = re.findall(r"^\| `raysync ([a-z-]+)", readme, re.MULTILINE)
    shown = re.findall(r"^│ ([a-z][a-z-]+)", call("--help")[1], re.MULTILINE)
    assert shown == in_readme == list(cli.ORDER)


def test_a_long_paradigm_name_does_not_narrow_the_numbers(monkeypatch):
    shown = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(table, "console", shown)
    name = "sync-switch(first=bsp, then=ssp(staleness=3), fraction=0.6, online=elastic)"
    summary = {
        "status": "finished",
        "final_accuracy": 0.981,
        "throughput_samples_per_s": 972.4,
        "wait_fraction": 0.2,
        "staleness_mean": 1.2,
        "staleness_max": 4,
        "lead_max": 62,
        "seconds": 1.5,
    }
    table.print_table({name: [summary]}, config.validate({}), [0], ACCURACY)
    rows = shown.file.getvalue().splitlines()[5:]
    assert rows[0].split()[-7:] == ["98.1%", "1.50", "972", "20%", "1.2", "4", "62"]
    assert " ".join(row[:28].strip() for row in rows).strip() == name


def test_what_is_free_is_what_can_be_asked_for(monkeypatch):
    free = {
        "CPU": 3.0,
        "memory": 1e9,
        "node:127.0.0.1": 1.0,
        "fast_disk": 1.0,
        "bundle_group_66d908e35630d03f0f30299f4a3302000000": 999.9,
        "CPU_group_0_66d908e35630d03f0f30299f4a3302000000": 1.0,
        "disk_group_a": 2.0,
    }
    nodes = [{"Alive": True, "Resources": free, "Labels": {}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(ConfigError, match=naming("9 CPU 3 CPU, 2 disk_group_a, 1 fast_disk")):
        placement.feasible_plan(config.validate({"workers": [{"cpus": 9}]}))


def test_the_table_of_several_seeds():
    """What `±` says is what the report's does: half of the 95 % interval."""
    runs = [
        {"status": "finished", "final_accuracy": accuracy, "wait_fraction": accuracy}
        for accuracy in (0.5, 0.7)
    ]
    experiment = config.validate({})
    shown = table.table_of({"bsp": runs, "asp": [*runs, None]}, experiment, ACCURACY)
    of = {column.key: column for column in shown.columns}
    assert of["final_accuracy"].cell(shown.rows["bsp"], brief=True) == "60.0% ± 127.1%"
    assert of["wait_fraction"].cell(shown.rows["bsp"], brief=True) == "60%"
    assert of["final_accuracy"].cell(shown.rows["asp"], brief=True).endswith("(2 of 3)")
    assert tells(table.title(config.validate({}), [0, 1]), "95% interval 0 1")
    assert table.title(config.validate({}), [3]).endswith("seed 3")


def test_the_records_that_are_named_are_there(call, tmp_path, monkeypatch):
    """Below the home folder as well; where no run could begin, none are named."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "x.yaml").write_text(
        "{name: tiny, engine: virtual, workload: {samples: 64}, workers: [{step_s: 0.1}],"
        " paradigms: [bsp], output: ~/runs}"
    )
    code, out, err = call("compare", "x.yaml")
    assert code == 0, err
    [line] = [each for each in out.splitlines() if each.startswith("Records: ")]
    assert list(Path(line.removeprefix("Records: ")).glob("*/summary.json"))

    def fails(*_, **__):
        raise RunFailed("nothing could begin")

    monkeypatch.setattr("raysync.running.run.run_in", fails)
    code, out, err = call("compare", "x.yaml", "--set", "name=other")
    assert code == 1
    assert "other" not in out
