"""Secrets in URIs: they open their place, and are nowhere in what is written or printed."""

import sys
from string import ascii_letters, digits

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from raysync import config
from raysync.cli import app, main
from raysync.config.secret_masking import HARMLESS, masked
from raysync.errors import ConfigError
from raysync.record import storage

SECRET = "hunter2"
words = st.text(ascii_letters + digits + "_-", min_size=1, max_size=8)
letters = st.text(ascii_letters + digits + "%+/=:;!*()._-", max_size=8)
secrets = st.builds(lambda before, after: f"{before}{SECRET}{after}", letters, letters)


@given(
    words,
    secrets,
    words,
    st.lists(st.tuples(words, secrets), max_size=3),
    st.text(max_size=5),
    st.text(max_size=5),
)
def test_no_secret_is_left_and_masking_again_changes_nothing(
    user, password, host, pairs, before, behind
):
    password = password.replace("/", "%2F")  # as URIs have it; a slash may end the host
    query = "&".join(f"{name}={value}" for name, value in pairs if name not in HARMLESS)
    uri = f"s3://{user}:{password}@{host}/runs{'?' if query else ''}{query}"
    text = f"{before} {uri} {behind}"
    assert SECRET not in masked(text)
    assert masked(masked(text)) == masked(text)
    assert host in masked(text)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "s3://bucket/runs?secret=hunter2&access_key=AK",
            "s3://bucket/runs?secret=***&access_key=***",
        ),
        (
            "output=s3://b/x?scheme=http&endpoint_override=minio:9000",
            "output=s3://b/x?scheme=http&endpoint_override=minio:9000",
        ),
        ("s3://AK:hunter2@bucket/x", "s3://***@bucket/x"),
        ("fsspec+x://b?hunter2", "fsspec+x://b?***"),
        ("got 's3://b/x?secret=hunter2'; try again.", "got 's3://b/x?secret=***'; try again."),
        ("gs://anonymous@bucket/x", "gs://anonymous@bucket/x"),
        ("hdfs://host:9000/a:b@c", "hdfs://host:9000/a:b@c"),
        ("runs/a?b=c", "runs/a?b=c"),
    ],
)
def test_what_is_masked_and_what_is_kept(given, shown):
    assert masked(given) == shown


def test_a_resolved_experiment_has_no_secret_and_is_one_still():
    experiment = config.validate(
        {"output": f"s3://AK:{SECRET}@bucket/runs?session={SECRET}&region=eu-1"}
    )
    assert SECRET in str(experiment.output), "the process itself needs it"
    assert SECRET not in experiment.to_yaml()
    assert (
        config.parse(experiment.to_yaml(), source="y").output
        == "s3://***@bucket/runs?session=***&region=eu-1"
    )


def test_a_command_writes_and_prints_no_secret_but_writes_where_it_was_told(
    tmp_path, monkeypatch, capsys
):
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "{name: tiny, engine: virtual, timing: only, workload: {samples: 320}, "
        "workers: [{step_s: 0.1}]}"
    )
    output = f"output=file://{tmp_path}/out?secret={SECRET}"
    command = ["compare", str(file), "--set", output, "--set", "paradigms=[bsp]"]
    monkeypatch.setattr(sys, "argv", ["raysync", *command])
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"Records: file://{tmp_path}/out/tiny?secret=***" in done.output
    written = [one for one in (tmp_path / "out").rglob("*") if one.is_file()]
    assert {"config.yaml", "environment.json", "journal.jsonl", "summary.json"} <= {
        one.name for one in written
    }
    assert not [one for one in written if SECRET.encode() in one.read_bytes()]
    monkeypatch.setattr(
        sys, "argv", ["raysync", "report", f"file://{tmp_path}/none?secret={SECRET}"]
    )
    with pytest.raises(SystemExit):
        main()
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "place", [f"nope://b/x?secret={SECRET}", f"s3://b/x?secret={SECRET}", f"s3://u:{SECRET}@b c/x"]
)
def test_no_error_shows_a_secret(place):
    for use in (storage.check, storage.local_copy, storage.listdir):
        with pytest.raises(ConfigError) as refused:
            use(place)
        assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        config.parse("seed: 1", [f"output.x={place}"], source="x.yaml")
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        config.parse(f"seed: ['{place}']", source="x.yaml")
    assert SECRET not in str(refused.value)
