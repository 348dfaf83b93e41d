"""Secrets in URIs: they open their place, and are nowhere in what is written or printed."""

from string import ascii_letters, digits

import pytest
from hypothesis import given, settings, strategies as st

from raysync import config
from raysync.config.secret_masking import HARMLESS, masked
from raysync.errors import ConfigError
from raysync.record import storage
from tests.builders.files import files_in, write

SECRET = "hunter2"
words = st.text(ascii_letters + digits + "_-", min_size=1, max_size=8)
letters = st.text(ascii_letters + digits + "%+/=:;!*()._-", max_size=8)
secrets = st.builds(lambda before, after: f"{before}{SECRET}{after}", letters, letters)


around = st.text(max_size=5)


@settings(max_examples=50)
@given(words, secrets, words, st.lists(st.tuples(words, secrets), max_size=3), around, around)
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
        ("s3://b/x?secret=hunter2&access_key=AK", "s3://b/x?secret=***&access_key=***"),
        ("s3://AK:hunter2@bucket/x", "s3://***@bucket/x"),
        ("fsspec+x://b?hunter2", "fsspec+x://b?***"),
        ("got 's3://b/x?secret=hunter2'; try again.", "got 's3://b/x?secret=***'; try again."),
        ("output=s3://b/x?scheme=http&endpoint_override=minio:9000", None),
        ("gs://anonymous@bucket/x", None),
        ("hdfs://host:9000/a:b@c", None),
        ("runs/a?b=c", None),
    ],
)
def test_what_is_masked_and_what_is_kept(given, shown):
    assert masked(given) == (shown or given)


def test_a_resolved_experiment_has_no_secret_and_is_one_still():
    output = f"s3://AK:{SECRET}@bucket/runs?session={SECRET}&region=eu-1"
    experiment = config.validate({"output": output})
    assert SECRET in str(experiment.output), "the process itself needs it"
    text = experiment.to_yaml()
    assert SECRET not in text
    again = config.parse(text, source="y").output
    assert again == "s3://***@bucket/runs?session=***&region=eu-1"


def test_a_command_writes_and_prints_no_secret_but_writes_where_it_was_told(tmp_path, call):
    text = """{name: tiny, engine: virtual, timing: only, workload: {samples: 320},
        workers: [{step_s: 0.1}], paradigms: [bsp]}"""
    file, output = write(tmp_path / "tiny.yaml", text), f"file://{tmp_path}/out?secret={SECRET}"
    code, out, err = call("compare", file, "--set", f"output={output}")
    assert (code, SECRET in out + err) == (0, False)
    assert f"file://{tmp_path}/out/tiny?secret=***" in out
    written = files_in(tmp_path / "out")
    names = {"config.yaml", "environment.json", "journal.jsonl", "summary.json"}
    assert names <= {path.name for path in written}
    assert not any(SECRET.encode() in content for content in written.values())
    _, out, err = call("report", f"file://{tmp_path}/none?secret={SECRET}")
    assert SECRET not in out + err


@pytest.mark.parametrize(
    "place", [f"nope://b/x?secret={SECRET}", f"s3://b/x?secret={SECRET}", f"s3://u:{SECRET}@b c/x"]
)
def test_no_error_shows_a_secret(place):
    for use in (
        storage.check,
        storage.local_copy,
        storage.listdir,
        lambda place: config.parse("seed: 1", [f"output.x={place}"], source="x.yaml"),
        lambda place: config.parse(f"seed: ['{place}']", source="x.yaml"),
    ):
        with pytest.raises(ConfigError) as refused:
            use(place)
        assert SECRET not in str(refused.value)
