"""Ids of workers: what is minted is parsed again, and no text makes parsing fail."""

import json
import pickle

import pytest
from hypothesis import given, strategies as st

from raysync.core.ids import (
    Slot,
    WorkerId,
    split_timer,
    stage_slot,
    stage_timer,
    worker_id,
    worker_slot,
)

groups = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
numbers = st.integers(0, 10**9 - 1)


@given(groups, numbers, st.none() | st.integers(1, 10**9 - 1), numbers)
def test_an_id_knows_what_it_was_made_of(group, number, stage, life):
    slot = worker_slot(group, number)
    if stage is not None:
        slot = stage_slot(slot, stage)
    worker, slot = worker_id(slot, life), Slot(slot)
    assert (worker.slot, worker.life) == (slot, life)
    assert (worker.stage, worker.group, worker.number) == (slot.stage, slot.group, slot.number)
    assert (slot.stage, slot.number) == (stage or 0, number)
    assert slot.group == (group if stage is None else f"m{stage}/{group}")


def test_how_ids_are_written():
    assert worker_id(worker_slot("two-part-name", 11), 2) == "two-part-name-11#2"
    assert worker_id(stage_slot("gpu-3", 12), 1) == "m12/gpu-3#1"
    assert WorkerId("m12/gpu-3#9").next_life == "m12/gpu-3#10"
    assert Slot("m12/gpu-3").place == Slot("gpu-3").place == "gpu-3"
    worker = WorkerId("m12/two-part-name-11#2")
    assert (worker.stage, worker.group, worker.number) == (12, "m12/two-part-name", 11)
    assert {WorkerId(text).stage for text in ("gpu-3#1", "m2-3#1", "m02/gpu-3#1")} == {0}


def test_an_id_is_a_text_like_any_other():
    worker = worker_id("gpu-3", 2)
    assert {worker: 1} == {"gpu-3#2": 1}
    assert json.loads(json.dumps([worker])) == ["gpu-3#2"]
    assert pickle.loads(pickle.dumps(worker)).life == 2


HOSTILE = ["", "x", "#", "-", "m1/", "a-²#²", "m7/fast-0#x"]


@given(st.text() | st.sampled_from([*HOSTILE, "a-" + "9" * 5000]))
def test_no_text_makes_parsing_fail(text):
    worker, slot = WorkerId(text), Slot(text)
    assert worker.life >= 0 <= worker.number
    assert slot.stage >= 0 <= slot.number
    assert worker.slot.startswith(worker.group)
    assert split_timer(text)[0] >= 0


@given(numbers, st.text())
def test_a_timer_of_a_stage_knows_whose_it_is(stage, key):
    assert split_timer(stage_timer(stage, key)) == (stage, key)


@pytest.mark.parametrize("key", ["x", "", "/", "-1/x", "\u00b2/x", "9" * 5000 + "/x"])
def test_any_other_timer_is_no_stages(key):
    assert split_timer(key)[0] == 0
