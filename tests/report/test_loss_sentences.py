"""What a report says of lost processes: nothing where none was lost."""

import pytest

from raysync.results import page
from raysync.results.collection import collect
from raysync.results.columns import OF_LOSSES
from raysync.results.markdown import markdown
from raysync.results.ranking import rank
from raysync.results.sentences import describe_losses, losses
from raysync.results.tables import tables_of
from tests.builders.files import edit
from tests.builders.messages import tells

HEADINGS = {measure.heading for measure in OF_LOSSES}
WORKER = {"lost_workers": 1, "worker_away_s": 1.25}
SERVER = {"lost_servers": 2, "server_away_s": 3.5}
NONE = dict.fromkeys([*WORKER, *SERVER, "lost_evaluators"], 0)


def summary(**more):
    return {"status": "finished", "time_to_target_s": 5.0, "seconds": 8.0} | more


def headings(collection):
    [table] = tables_of(collection, rank(collection))
    return HEADINGS & {column.heading for column in table.columns}


@pytest.mark.parametrize("unhurt", [{}, NONE])
def test_only_runs_that_lost_something_are_named(made, unhurt):
    """Records of earlier versions have no such keys."""
    quiet = made({"bsp": [summary(**unhurt)] * 2, "asp": [summary(**unhurt), None]})
    assert losses(quiet) == []
    assert headings(quiet) == set()
    hurt = made({"bsp": [summary(**unhurt), summary(**unhurt | WORKER)], "asp": [summary()] * 2})
    [said] = losses(hurt)
    assert tells(said, "bsp seed 1 1 worker 1.25 s 8.00 s")
    assert headings(hurt) == {"lost workers", "workers away"}
    both = made({"bsp": [summary(**NONE | WORKER | SERVER | {"lost_evaluators": 1})]})
    assert tells(losses(both), "1 worker 1.25 s 2 servers 3.50 s 1 evaluator")
    assert headings(both) == HEADINGS
    resumed = made({"bsp": [summary(**NONE | {"lost_workers": 1})]})
    assert not tells(losses(resumed), "1 worker away")


def test_of_many_runs_the_worst_are_named_and_the_others_added_up():
    runs = [(f"run {index}", WORKER | {"worker_away_s": index, "seconds": 9}) for index in range(9)]
    *said, rest = describe_losses(runs)
    assert [int(text.split()[1]) for text in said] == [8, 7, 6, 5, 4]
    assert tells(rest, "4 4 workers 6.00 s")


def test_the_page_and_its_markdown_say_it(runs, own_copy, tmp_path):
    """A crash that the experiment planned is no loss: each of these runs has one."""
    assert losses(runs) == []
    [file, *_] = own_copy.glob("*-bsp-*/summary.json")
    edit(file, **WORKER)
    collection = collect([own_copy])
    [said] = losses(collection)
    assert said in markdown(collection)
    page.write_html(collection, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert said in text
    assert "lost workers" in text
    assert "lost servers" not in text
