"""Step times from files: tables of all workers, what is wrong with them, and where they are."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from raysync import config
from raysync.config.files import parse
from raysync.config.step_tables import read_table
from raysync.emulation.step_time import StepTime
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.tuning.sweep_run import plan
from tests.builders.messages import naming, tells

WIDE = "fast,slow\n1,10\n2,20\n3,30\n"


def table(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def experiment(tmp_path, workers):
    path = tmp_path / "x.yaml"
    path.write_text(f"{{engine: virtual, timing: only, workers: {workers}}}")
    return config.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "step,fast,slow\n7,1,10\n8,2,20\n\n9,3,30\n",
        "fast , step ,slow\n1 ,0,10\n2,1,20\n3,2,30\n",
        "\ufeff" + WIDE,
        WIDE.replace("\n", "\r\n"),
    ],
)
def test_empty_lines_spaces_and_marks_of_windows_change_nothing(tmp_path, text):
    assert read_table(table(tmp_path, text)).steps == {"fast": (1, 2, 3), "slow": (10, 20, 30)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns"),
        ("fast,slow\n", "step times"),
        ("1,2\n3,4\n", "line 1: numbers"),
        ("a,a\n1,2\n", "'a' twice"),
        ("a,\n1,2\n", "column 2 title"),
        ("step\n1\n", "rank0 --columns"),
        ("a,b\n1,2\n3\n", "line 3: 'b' seconds"),
        ("\n \na,b\n1,2\n3,4,5\n", "line 5: 3 2"),
        ("a,b\n1,2\n\n3,\n", "line 4: 'b' seconds"),
        ("a,b\n1,0\n", "line 2: 'b' 0 s 0"),
        ("a,b\n1,inf\n", "line 2: 'b' inf s"),
        ("a,b\nnan,1\n", "line 2: 'a' nan s"),
        ("a,b\n1,quick\n", "line 2: 'b' 'quick' seconds"),
        ("step,a\n49,1\n99,1\n199,1\n", "line 4: step 199 'a' step 149 by 50"),
        ("step,a\n0,1\n0,1\n", "line 3: step 0 'a' line 2"),
        ("step,a\nx,1\n", "line 2: step 'x'"),
        ("worker,seconds\na,1\n", "'step' --columns step="),
        ("worker,step,seconds\n,0,1\n", "line 2: worker"),
        ("worker,step,seconds\na,0.5,1\n", "line 2: step '0.5'"),
        ("worker,step,seconds\na,0,1\nb,0,1\na,0,2\n", "line 4: step 0 'a' line 2 --columns"),
        ("worker,step,seconds\na,0,1\na,3,1\na,1,1\n", "line 3: step 3 'a' step 2 by 1"),
        ("worker,step,seconds\na,0,1\nb,1,1\n", "line 3: step 1 'b' step 0"),
        ("a,b\n1,2\n# again, later\n3,4\n", "line 3: comment '# again'"),
    ],
)
def test_what_is_wrong_with_a_table_is_named_with_its_line(tmp_path, text, says):
    path = table(tmp_path, text)
    with pytest.raises(ConfigError, match=naming(f"workers[0].trace: {path}: {says}")):
        experiment(tmp_path, "[{trace: t.csv}]")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("t.csv", b"\xff\xfe\x00", "text"),
        ("t.parquet", b"not parquet", "t.parquet:"),
        ("t.csv.gz", b"not packed", "t.csv.gz:"),
        ("nowhere.csv", None, "nowhere.csv:"),
        ("nowhere.parquet", None, "nowhere.parquet"),
    ],
)
def test_a_file_that_is_no_table(tmp_path, name, data, says):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=r"workers\[0\].trace: ") as raised:
        experiment(tmp_path, f"[{{trace: {name}}}]")
    assert tells(str(raised.value), says)


def test_a_row_of_parquet_is_named(tmp_path):
    pq.write_table(pa.table({"a": [1.0, None]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=naming("2: 'a': seconds")):
        experiment(tmp_path, "[{trace: t.parquet}]")


def test_a_group_takes_all_columns_and_steps_stay_side_by_side(tmp_path):
    table(tmp_path, WIDE)
    [group] = experiment(tmp_path, "[{name: rank, count: 2, trace: t.csv}]").workers
    assert group.trace == ((1, 2, 3), (10, 20, 30))
    workers = [StepTime(group, 0, f"rank-{number}", 32) for number in range(2)]
    rows = [[worker.seconds(clock, 32) for worker in workers] for clock in range(4)]
    assert rows == [[1, 10], [2, 20], [3, 30], [1, 10]]


def test_groups_take_the_columns_that_are_called_after_their_workers(tmp_path):
    table(tmp_path, "slow-0,fast-1,fast-0\n9,2,1\n")
    groups = experiment(
        tmp_path, "[{name: fast, count: 2, trace: t.csv}, {name: slow, trace: t.csv}]"
    ).workers
    assert [group.trace for group in groups] == [((1,), (2,)), ((9,),)]


def test_other_numbers_of_workers_are_refused_by_name(tmp_path):
    table(tmp_path, WIDE)
    with pytest.raises(ConfigError, match=naming("t.csv 2 'gpu' 3 count: 2 gpu-0")):
        experiment(tmp_path, "[{name: gpu, count: 3, trace: t.csv}]")


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        ("[[1], [2], [3]]", "3 2 workers"),
        ("[[1], []]", "1 seconds"),
        ("[[1], 2]", "1 seconds 2"),
        ("[[1], [2, -3]]", "worker 1: 2 -3"),
        ("[true, 1]", "1: seconds"),
    ],
)
def test_lists_in_the_file_have_one_for_each_worker(tmp_path, trace, says):
    with pytest.raises(ConfigError, match=naming(says)):
        experiment(tmp_path, f"[{{count: 2, trace: {trace}}}]")


def test_a_path_is_relative_to_the_experiment_file(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "a", tmp_path / "b"
    folder.mkdir(), elsewhere.mkdir()
    table(folder, WIDE)
    (elsewhere / "t.csv").write_text("fast,slow\n5,5\n")
    monkeypatch.chdir(elsewhere)
    loaded = experiment(folder, "[{count: 2, trace: t.csv}]")
    assert loaded.workers[0].trace == ((1, 2, 3), (10, 20, 30))
    said = config.load(folder / "x.yaml", ["workers.0.trace=t.csv"])  # typed in this folder
    assert said.workers[0].trace == ((5,), (5,))


def test_the_record_holds_the_numbers(tmp_path):
    table(tmp_path, WIDE)
    loaded = experiment(tmp_path, "[{count: 2, trace: t.csv}]")
    text = loaded.to_yaml()
    assert yaml.safe_load(text)["workers"][0]["trace"] == [[1, 2, 3], [10, 20, 30]]
    assert parse(text, source="record") == loaded
    assert json.loads(loaded.model_dump_json())["workers"][0]["trace"][1] == [10, 20, 30]


def test_a_trial_of_a_sweep_reads_the_trace_beside_the_sweep_s_file(tmp_path, monkeypatch):
    table(tmp_path, WIDE)
    experiment(tmp_path, "[{count: 2, trace: t.csv}], sweep: {grid: {paradigm: [bsp, asp]}}")
    monkeypatch.chdir(tmp_path.parent)
    trials = plan(tmp_path / "x.yaml", [f"output={tmp_path}"]).trials
    assert trials.experiment({"paradigm": "asp"}).workers[0].trace[1] == (10, 20, 30)


def test_one_list_is_shared_and_the_command_says_so():
    settings = {"engine": "virtual", "timing": "only", "workload": {"samples": 64}}
    of = [{"count": 2, "trace": [1, 2]}, {"name": "b", "count": 2, "trace": [[1], [2]]}]
    [remark] = prepare(config.validate({**settings, "workers": of})).remarks
    assert tells(remark, "2 'worker' 2")
