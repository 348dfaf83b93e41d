"""A mistake at the command line is answered in one or two lines that name it, with exit status 2,
and nothing is left behind.
"""

import re
import shlex

import pytest

from tests.builders.messages import tells

FILES = {
    "x.yaml": "name: x",
    "timed.yaml": """{engine: virtual, timing: only, batch_size: 30,
        workload: {iterations_per_worker: 150},
        workers: [{name: fast, step_s: 1}, {name: slow, step_s: 2}]}""",
    "switch.yaml": """{engine: virtual, paradigm: {name: sync-switch, first: bsp, then: asp},
        switch_search: {target: final_accuracy, threshold: 0.015,
        known: {value: 0.9, seconds: 100}}}""",
    "users.yaml": "{engine: virtual, task: 'made_with_a_mistake:make'}",
    "made_with_a_mistake.py": "def make():\n    return {}['x']\n",
    "negative.txt": "1 -2",
    "steps.csv": "a,b,c,d\n1,2,4,2\n2,1,4,2\n",
    "one-of-two.csv": "gpu a,gpu b,other\n1,2,3\n",
    "damaged/journal.jsonl": "no journal\n",
}
MISTAKES = [
    # what an experiment says
    ("run x.yaml --set data=digitz", "data 'digitz' 'digits'"),
    ("compare x.yaml --set data=digitz", "data 'digitz' 'digits'"),
    ("run x.yaml --set ' update.lr = -1'", "update.lr: 0 -1"),
    ("run x.yaml --set model=math:pi", "model math:pi:"),
    ("run x.yaml --set data.train_samples=3 --set batch_size=2", "3 training 4"),
    ("run users.yaml", "made_with_a_mistake.py:2"),
    ("run x.yaml --set 'workers=[{trace: negative.txt}]'", "negative.txt line 1: -2"),
    ("compare x.yaml --set 'workers=[{trace: negative.txt}]'", "negative.txt line 1: -2"),
    # files and folders of commands
    ("run", "FILE"),
    ("run nothing.yaml", "nothing.yaml"),
    ("run x.yaml --trust", "--trust --resume"),
    ("compare x.yaml --trust", "--trust --resume"),
    ("sweep x.yaml --trust", "--trust --resume"),
    ("replay nothing", "nothing"),
    ("replay damaged", "damaged"),
    ("watch nothing", "nothing:"),
    ("watch empty", "run folder"),
    ("watch file://HERE/empty", "run folder"),
    ("watch x.yaml", "x.yaml: file folder"),
    ("watch s4://bucket/runs", "'s4'"),
    ("calibrate here.txt", "here.txt: .yaml"),
    ("calibrate nowhere/here.yaml", "nowhere/here.yaml: folder"),
    ("dashboards", "DIR --check"),
    ("dashboards --check --prometheus http://127.0.0.1:1", "Connection refused"),
    ("dashboards x --prometheus there:9090", "--prometheus there:9090: http://HOST:PORT"),
    ("dashboards /dev/null/x", "/dev/null/x:"),
    ("report", "PATH"),
    ("report nowhere", "nowhere:"),
    ("report empty", "empty report"),
    ("report . --format pdf", "--format pdf"),
    # whatif
    ("whatif", "FILE"),
    ("whatif nowhere.csv", "nowhere.csv:"),
    ("whatif negative.txt", "negative.txt:"),
    ("whatif .", "folder tables"),
    ("whatif steps.csv steps.csv", "steps.csv: another table"),
    ("whatif steps.csv --paradigm spp", "'spp' 'ssp'"),
    ("whatif steps.csv --paradigm [ssp]", "{name: ssp staleness: 3}"),
    ("whatif steps.csv --paradigm asp --paradigm asp", "asp:"),
    ("whatif steps.csv --paradigm '{name: k-sync, k: 9}'", "k: 9 workers 4 1 4"),
    ("whatif steps.csv --paradigm decoupled", "model stages"),
    ("whatif steps.csv -o x.pdf", "--output x.pdf:"),
    ("whatif steps.csv -o no/x.md", "--output no/x.md:"),
    ("whatif steps.csv --price-per-hour inf", "--price-per-hour inf:"),
    ("whatif steps.csv --model-bytes 98", "--model-bytes: '98' unit"),
    ("whatif steps.csv --model-bytes 9MB --model mlp", "--model --model-bytes"),
    ("whatif steps.csv --model mlp --link 1gbit", "--model mlp: torchvision:NAME"),
    ("whatif steps.csv --curve link=1gbit..2gbit", "--curve link: --model-bytes --link"),
    ("whatif steps.csv --curve batch=1..64", "--curve batch: --batch-size"),
    ("whatif steps.csv --batch-size 0", "--batch-size"),
    # advise
    ("advise timed.yaml --train --budget-minutes 0", "--budget-minutes 0: 0"),
    ("advise timed.yaml --train --budget-minutes nan", "--budget-minutes nan: 0"),
    ("advise timed.yaml --budget-minutes 3", "--budget-minutes: --train"),
    ("advise timed.yaml --train --json", "--json"),
    ("advise timed.yaml --seeds 0", "--seeds"),
    ("advise timed.yaml --paradigm bps", "'bps' 'bsp'"),
    ("advise timed.yaml -o x.yaml", "x.yaml: file folder"),
    ("advise timed.yaml --steps none.csv", "none.csv:"),
    ("advise timed.yaml --columns unit=ms", "--columns: --steps"),
    ("advise timed.yaml --steps steps.csv", "4 experiment 2"),
    ("advise timed.yaml --steps one-of-two.csv --columns 'worker=*a'", "1 ranks experiment 2"),
    ("advise timed.yaml --set 'workers=[{max_batch: 0}]'", "workers[0].max_batch"),
    ("advise timed.yaml --set 'workers=[{max_batch: 8}]'", "30 8"),
    (
        "advise timed.yaml --set batch_size=1 --set 'workers=[{devices_per_worker: 2}]'",
        "1 2 devices",
    ),
    (
        "advise timed.yaml --set timing=with-gradients --set 'target={metric: no, at_least: 0.5}'",
        "target.metric 'no' accuracy",
    ),
    # switch-search
    *(
        (f"switch-search switch.yaml --recurring --set '{setting}'", facts)
        for setting, facts in [
            ("switch_search=null", "switch_search: {target: final_accuracy}"),
            ("switch_search={}", "final_accuracy converged_accuracy best_a"),
            ("switch_search.target=accuracy", "switch_search: target: converged_accuracy final_"),
            ("switch_search.treshold=1", "'treshold' 'threshold'"),
            ("switch_search.threshold=1", "switch_search: threshold: 1 1"),
            ("switch_search.known=0.9", "switch_search.known: {name: 0.9"),
            ("switch_search.threshold=-0.1", "switch_search.threshold: 0 -0.1"),
            ("switch_search.candidate_repeats=0", "switch_search.candidate_repeats"),
            ("switch_search.known={seconds: 3}", "switch_search.known.value"),
            ("switch_search.known=null", "switch_search.known: --recurring"),
            ("paradigm=bsp", "paradigm: bsp switch: {name:"),
            (
                "paradigm={name: sync-switch, then: [asp, bsp], fraction: [0.2, 0.3]}",
                "paradigm.then: 2",
            ),
            ("timing=only", "timing:"),
        ]
    ),
]


@pytest.fixture
def files(tmp_path):
    """The files that the lines name."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    return {*tmp_path.rglob("*")}


@pytest.mark.parametrize(("line", "facts"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_named(call, files, tmp_path, line, facts):
    code, out, err = call(*shlex.split(line.replace("HERE", str(tmp_path))))
    assert (code, out) == (2, "")
    assert tells(" ".join(re.sub("[│─╭╮╰╯]", " ", err).split()), facts)
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2 or err.startswith("Usage: ")
    left = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    assert left == files
