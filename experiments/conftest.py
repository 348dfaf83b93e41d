"""The lab book as its tests use it. This folder is on the path, since this file lies in it."""

import pytest


@pytest.fixture(scope="module")
def tables(request):
    """The tables.py beside the test."""
    import labbook

    return labbook.tables_of(request.path.parent)


@pytest.fixture(scope="module")
def results(request):
    """The committed results beside the test."""
    import labtables

    return labtables.Results(request.path.parent)
