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
from raysync.errors import RunFailed
from raysync.paradigms import make
from raysync.record.reader import load
from tests.builders.files import write
from tests.builders.messages import tells


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paradigm: spp", "paradigm 'spp' 'ssp'"),
        ("model: lenet5", "model 'lenet5' 'lenet'"),
        ("data: digitz", "data 'digitz' 'digits'"),
        ("data: {name: mnist, data_dir: nowhere}", "nowhere"),
        ("update: {optimizer: adam, betas: [1.5, 0.9]}", "update.betas[0]: 1 1.5"),
        ("model: math:pi", "model math:pi:"),
        ("data: ':x'", "data :x: package.module:Name"),
        ("model: tests.builders.models:half", "return 10"),
        ("data: {name: text, parameters: {file: nowhere.txt}}", "'nowhere.txt'"),
        ("data: {name: text, parameters: {file: /dev/null}}", "'/dev/null'"),
        ("data: text", "mlp: 0 9 (64,)"),
        ("data: {name: digits, train_samples: 3}\nbatch_size: 2", "3 training 4"),
        ("{engine: virtual, workers: [{trace: nowhere.txt}]}", "nowhere.txt:"),
        ("profile: ./x.yaml", "profile ./x.yaml: profile: 'profile'"),
        ("{engine: virtual, workers: [{trace: /dev/null}]}", "workers[0].trace: /dev/null:"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_bad_input(call, tmp_path, monkeypatch, command, text, says):
    import socket

    def offline(*_):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    code, out, err = call(command, write(tmp_path / "x.yaml", text))
    assert code == 2
    assert tells(err.replace("\n", " "), says)
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("t.txt", "1 -2", "t.txt line 1: -2"),
        ("t.txt", "1 quick", "t.txt line 1:"),
        ("p.yaml", "{about: mine, worker: []}", "p.yaml: worker: 'worker' 'workers'"),
        ("p.yaml", "workers: [{speed: -1}]", "x.yaml p.yaml: workers[0].speed:"),
        ("p.yaml", "workers: [{trace: t.txt}]", "x.yaml p.yaml: workers[0].trace: t.txt:"),
    ],
)
def test_files_that_the_experiment_names(call, tmp_path, file, text, says):
    write(tmp_path / file, text)
    named = "profile: p.yaml" if file == "p.yaml" else "workers: [{trace: t.txt}]"
    code, out, err = call("run", write(tmp_path / "x.yaml", named), "--engine", "virtual")
    assert (code, out) == (2, "")
    assert tells(err.replace("\n", " "), says)
    assert len(err.strip().splitlines()) <= 2


def test_a_virtual_run_from_the_command_line(call, tmp_path):
    """Says how long the steps were taken to last, who crashed, and which fault nobody met; the
    record is there.
    """
    text = """{name: v, timing: only, workers: [{name: a, count: 2}, {name: b, step_s: 1}],
        workload: {samples: 640},
        faults: [{kind: crash, worker: a-1, at_clock: 1},
        {kind: crash, worker: b-0, at_s: 1000}]}"""
    code, out, err = call(
        "run",
        write(tmp_path / "x.yaml", text),
        "--engine",
        "virtual",
        "--set",
        "data.train_samples=50",
    )
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


def test_a_file_that_is_not_there(call):
    assert call("run", "nothing.yaml")[0] == 2
    assert call("replay", "nothing")[0] == 2
    assert call("run")[0] == 2, "an argument is missing"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "paradigms",
            [
                "bsp",
                "asp",
                "ssp",
                "staleness=3",
                "lagtuner",
                "s_upper=15",
                "[s_lower,",
                "hybrid-sync",
                "pull_interval=1",
                "synchronous",
                "k-async",
                "ringmaster",
            ],
        ),
        (
            "models",
            [
                "mlp",
                "convnet",
                "lenet",
                "fashion-cnn",
                "hidden=(64,)",
                "62,006",
                "1,727,962",
                "3x32x32",
                "char-lm",
                "64 tokens",
            ],
        ),
        (
            "datasets",
            ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic", "text"],
        ),
    ],
)
def test_list(call, kind, names):
    code, out, _ = call("list", kind)
    assert code == 0
    assert all(name in out for name in names)


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
    write(tmp_path / "run" / "journal.jsonl", "no journal\n")
    assert call("replay", "run")[0] == 2


@pytest.mark.parametrize("named_by", ["file", "environment"])
def test_a_cluster_that_is_not_there(call, tmp_path, monkeypatch, named_by):
    """An address in the file, or the RAY_ADDRESS that a Ray job sets."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    if named_by == "environment":
        monkeypatch.setenv("RAY_ADDRESS", address)
    settings = ["--set", f"cluster.address={address}"] if named_by == "file" else []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", unreachable)
    code, _, err = call("run", write(tmp_path / "x.yaml", "seed: 1"), *settings)
    assert code == 2
    assert f"no Ray cluster at '{address}' (Connection refused)" in err


CANNOT_BE_JOINED = {
    "ray://head:10001": None,
    "10.0.0.1:6379": RuntimeError("Version mismatch:\n    Ray: 2.54.0\nwith:\n    Ray: 2.60.0\n"),
    "10.0.0.2:6379": ConnectionError("Failed to connect\nto 10.0.0.2"),
}


@pytest.mark.parametrize("address", CANNOT_BE_JOINED)
def test_a_cluster_that_cannot_be_joined_is_answered_in_a_line(
    call, tmp_path, monkeypatch, address
):
    """A Ray Client, another version of Ray, and one that asks for a token."""

    def init(**_):
        raise CANNOT_BE_JOINED[address]

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    if CANNOT_BE_JOINED[address] is not None:
        monkeypatch.setattr(connection, "check_address", lambda _: None)
    settings = ["--set", f"cluster.address={address}"]
    code, _, err = call("run", write(tmp_path / "x.yaml", "seed: 1"), *settings)
    assert code == 2
    *_, line = err.splitlines()
    assert address in line
    assert all(word in line for word in str(CANNOT_BE_JOINED[address] or "job submit").split())


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:8265", "'http://127.0.0.1:8265' URL"),
        ("not-an-address", "'not-an-address'"),
        ("{listening}", "(nobody answers)"),
        ("127.0.0.1:99999999999", "cluster '127.0.0.1:99999999999'"),
    ],
)
def test_an_address_that_is_no_cluster(call, tmp_path, monkeypatch, address, says):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", unreachable)
    monkeypatch.setattr(connection, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv(
            "RAY_ADDRESS", address.format(listening=f"127.0.0.1:{listening.getsockname()[1]}")
        )
        code, _, err = call("run", write(tmp_path / "x.yaml", "seed: 1"))
    assert code == 2
    first, *more = err.splitlines()
    assert tells(first, "Starting 4"), "at once: where Ray is there, nothing else is seen for long"
    [reason] = [line for line in more if line.startswith("raysync: ")]
    assert tells(reason, says)
    assert more[-1] == reason


def test_the_address_of_the_dashboard_is_no_cluster(call, tmp_path, monkeypatch):
    """Ray would wait for minutes for what is not its control store."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # by another test, in this process
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as dashboard:
        Thread(target=dashboard.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{dashboard.server_port}"
        code, _, err = call(
            "run", write(tmp_path / "x.yaml", "seed: 1"), "--set", f"cluster.address={address}"
        )
        dashboard.shutdown()
    assert code == 2
    assert f"'{address}' answers in HTTP, so it is the URL of a Ray dashboard" in err
    assert "HOST:6379" in err


def test_records_in_the_folder_of_a_job_are_warned_of(call, tmp_path, monkeypatch):
    said, short = (
        "which Ray deletes",
        "{engine: virtual, timing: only, workload: {samples: 320}, workers: [{step_s: 1}]}",
    )
    run = ["run", write(tmp_path / "x.yaml", short)]
    assert said not in call(*run)[2]
    monkeypatch.setenv(
        "RAY_JOB_CONFIG_JSON_ENV_VAR", '{"metadata": {"job_submission_id": "raysubmit_1"}}'
    )
    assert call(*run)[2].count(said) == 1
    for kept in (str(tmp_path), f"file://{tmp_path}"):
        assert said not in call(*run, "--set", f"output={kept}")[2]


def unreachable(address, **_):
    raise ConnectionError("nobody answers")


def test_commands_are_in_the_order_of_the_readme(call):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    in_readme = re.findall(r"^\| `raysync ([a-z-]+)", readme, re.MULTILINE)
    shown = re.findall(r"^│ ([a-z][a-z-]+)", call("--help")[1], re.MULTILINE)
    assert shown == in_readme == list(cli.ORDER)


def test_lists_show_what_a_factory_makes(call):
    shown = call("list", "paradigms")[1]
    assert "factory" not in shown
    assert "batch_sizes={}" in " ".join(shown.split())


def test_spaces_around_a_key_are_not_part_of_it(call, tmp_path):
    file = write(tmp_path / "x.yaml", "name: x")
    assert tells(call("run", file, "--set", " update.lr = -1")[2], "update.lr: 0 -1")


def test_a_key_of_a_sweeps_grid_is_a_path(call, tmp_path):
    file = write(tmp_path / "x.yaml", "{engine: virtual, sweep: {grid: {update.lr: [0.1]}}}")
    assert tells(
        call("sweep", file, "--set", "sweep.grid.update.lr=[-3]")[2], "x.yaml update.lr=-3"
    )


def test_numbers_are_never_cut(monkeypatch, capsys):
    monkeypatch.setattr(table, "console", Console(width=60, color_system=None))
    label = "sync-switch(first=bsp, then=asp, fraction=0.0625, online=elastic)"
    summary = {
        "status": "finished",
        "final_accuracy": 0.951,
        "seconds": 0.0123,
        "throughput_samples_per_s": 1.2e7,
        "wait_fraction": 0.5,
        "staleness_mean": 2.7,
        "staleness_max": 3,
        "lead_max": 1,
    }
    table.print_table({label: [summary]}, config.validate({}), [0], ACCURACY)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "12,000,000" in shown
    assert " 0.0123 " in shown


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


def test_what_is_free_is_what_can_be_asked_for():
    free = {
        "CPU": 3.0,
        "memory": 1e9,
        "node:127.0.0.1": 1.0,
        "fast_disk": 1.0,
        "bundle_group_66d908e35630d03f0f30299f4a3302000000": 999.9,
        "CPU_group_0_66d908e35630d03f0f30299f4a3302000000": 1.0,
        "disk_group_a": 2.0,
    }
    assert tells(placement._show_amounts(free), "3 CPU 2 disk_group_a 1 fast_disk")


def test_the_table_of_several_seeds():
    """What `±` says is what the report's does: half of the 95 % interval."""
    runs = [
        {"status": "finished", "final_accuracy": accuracy, "wait_fraction": accuracy}
        for accuracy in (0.5, 0.7)
    ]
    experiment = config.validate({})
    shown = table.table_of({"bsp": runs, "asp": [*runs, None]}, experiment, ACCURACY)
    of = {column.key: column for column in shown.columns}
    cells = [
        of[key].cell(shown.rows["bsp"], brief=True) for key in ("final_accuracy", "wait_fraction")
    ]
    assert cells == ["60.0% ± 127.1%", "60%"]
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
