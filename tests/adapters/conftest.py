"""The libraries behind the adapters: real ones. A test whose library is missing is skipped by its
name; `.ci/run` installs all.
"""

import warnings

import pytest


def _imported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say of each other when they are imported
        return pytest.importorskip(name)


@pytest.fixture(scope="session")
def lightning():
    return _imported("lightning.pytorch")


@pytest.fixture(scope="session")
def transformers():
    return _imported("transformers")


@pytest.fixture(scope="session")
def peft(transformers):
    return _imported("peft")


@pytest.fixture(scope="session")
def timm():
    return _imported("timm")
