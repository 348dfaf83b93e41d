"""The page on Sync-Switch: what the authors' own runs say of its claims."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER.parents[1] / "tests" / "paper" / "sync_switch_runs.yaml"


def test_the_runs_are_those_that_the_search_is_tested_with():
    """Those of ASP alone come on top: the search never tries them."""
    published = yaml.safe_load(PUBLISHED.read_text())
    runs = pd.read_csv(FOLDER / "authors.csv")
    for setup, of_setup in runs[runs.bsp_share > 0].groupby("setup"):
        theirs = published[f"exp{setup}"]
        assert set(of_setup.bsp_share) == set(theirs)
        for share, repeats in of_setup.groupby("bsp_share"):
            assert repeats[["seconds", "final_accuracy"]].values.tolist() == theirs[share]


@pytest.mark.parametrize(
    ("percents", "verdict"),
    [
        ([90.0, 90.2, 89.8], "as good"),
        ([90.9, 91.1, 90.7], "better"),
        ([89.5, 88.0, 91.0], "undecided"),
        ([88.0, 88.1, 87.9], "worse"),
        ([89.6, 89.61, 89.59], "worse, within the margin"),
    ],
)
def test_a_share_is_as_good_by_two_one_sided_tests(tables, percents, verdict):
    runs = pd.DataFrame(
        [(1, percent) for percent in (90.0, 90.1, 89.9)] + [(0.5, one) for one in percents],
        columns=["bsp_share", "percent"],
    )
    assert tables.gap(runs, 0.5).verdict == verdict
