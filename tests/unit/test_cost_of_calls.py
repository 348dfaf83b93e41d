"""What calls, pushes and updates cost by a profile is in every prediction."""

import pytest

from raysync.config import Link
from raysync.errors import ConfigError
from raysync.predict.candidates import paradigms_in
from raysync.predict.exchange import exchange_of
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.predict.what_if import PredictionOptions, predict
from tests.builders.messages import naming

STEP_S, LATENCY_S, PUSH_S, UPDATE_S = 0.1, 0.005, 0.002, 0.003
PROFILE = f"""
about: a test
workers: [{{count: 2, step_s: 1}}]
network: {{link: {{latency_s: {LATENCY_S}}}, push_s: {PUSH_S}, update_s: {UPDATE_S}}}
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "here.yaml"
    path.write_text(PROFILE)
    return str(path)


def exchange(profile, **options):
    given = {"model_bytes": 1000, "links": [], "nodes": None, "exchanges": [], "ranks": ["a", "b"]}
    return exchange_of(**given | options, profile=profile)


def samples_per_s(exchange, paradigm):
    times = RankStepTimes("a test", {"a": (STEP_S,) * 60, "b": (STEP_S,) * 60})
    options = PredictionOptions(batch_size=10, exchange=exchange)
    answer = predict(times, options, paradigms_in([paradigm]))
    prediction, *_ = answer.comparison.predictions
    return prediction.samples_per_s.value


@pytest.mark.parametrize(
    ("paradigm", "round_s"),
    [
        ("bsp", STEP_S + 2 * LATENCY_S + 2 * PUSH_S + UPDATE_S),
        ("{name: bsp, exchange: ring}", STEP_S + 2 * LATENCY_S + UPDATE_S),
    ],
)
def test_a_round_has_its_calls_its_pushes_and_its_update(profile, paradigm, round_s):
    found = samples_per_s(exchange(profile), paradigm)
    assert found == pytest.approx(20 / round_s, rel=0.01)


def test_links_of_the_command_line_come_on_top_of_the_latency_of_calls(profile):
    slow = exchange(profile, links=["1MB/s,20ms"])
    assert slow.link == Link(latency_s=0.025, bandwidth_bytes_per_s=1e6)
    round_s = STEP_S + 2 * (0.025 + 0.002) + 2 * PUSH_S + UPDATE_S  # both use the server's 1 MB/s
    assert samples_per_s(slow, "bsp") == pytest.approx(20 / round_s, rel=0.01)


def test_a_profile_whose_groups_have_links_of_their_own_is_refused(profile, tmp_path):
    path = tmp_path / "far.yaml"
    path.write_text(PROFILE.replace("step_s: 1", "name: far, step_s: 1, link: {latency_s: 1}"))
    with pytest.raises(ConfigError, match=naming("far.yaml far advise")):
        exchange(str(path))


def test_a_profile_needs_the_size_of_a_gradient_and_its_name(profile):
    with pytest.raises(ConfigError, match=naming("--profile --model-bytes")):
        exchange(profile, model_bytes=None)
    with pytest.raises(ConfigError, match=naming("nowhere")):
        exchange("nowhere")
