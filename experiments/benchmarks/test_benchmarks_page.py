"""The page on benchmarks: how its goals are judged."""

import pytest


@pytest.mark.parametrize(
    ("cells", "options", "verdict"),
    [
        (["0.85 (0.81 to 0.90)"], {}, "met"),
        (["1,000"], {}, "met"),
        (["0.85 (0.80 to 0.90)"], {}, "open"),
        (["0.79 (0.70 to 0.90)"], {}, "missed"),
        (["0.85 (0.81 to 0.90)", "0.79"], {}, "missed"),
        (["0.70 (0.60 to 0.75)"], {"at_least": False}, "met"),
        (["0.70", "0.85 (0.60 to 0.90)"], {"at_least": False}, "missed"),
    ],
)
def test_a_goal_is_met_only_by_its_whole_interval_and_the_worst_row(
    tables, cells, options, verdict
):
    assert tables.Goal("", 0.8, lambda _: cells, **options).verdict(None) == verdict
