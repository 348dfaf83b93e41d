"""Language: the text, its windows, the transformer, and measures of loss."""

from math import exp, inf, isnan, log, nan

import numpy as np
import pytest
import torch
from torch import nn

import raysync
from raysync import config
from raysync.cli import table
from raysync.cli.progress_lines import facts_of
from raysync.config import Data, Target
from raysync.core.journal import Evaluation
from raysync.core.metrics import ACCURACY, PERPLEXITY
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.results.columns import metric_text
from raysync.training.data.data_set import data_set
from raysync.training.data.datasets import load
from raysync.training.data.text import (
    ENTROPY_RATE,
    PROBABILITIES,
    followers,
    synthetic_text,
    token_ids,
    windows,
)
from raysync.training.evaluation import evaluate
from raysync.training.models.builtin import listed
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import LanguageModel
from raysync.training.trials.cost import on_random_samples, step_s
from raysync.training.vectors.flat import FlatModel
from tests.builders.messages import naming
from tests.builders.models import built

LETTERS = 10


def text(path, words, **parameters):
    """The data set of a file with these words."""
    path.write_bytes(words if isinstance(words, bytes) else words.encode())
    return load(Data(name="text", parameters={"file": str(path), **parameters}))


def build(source="char-lm", shape=(8,), classes=5, tokens=True, **parameters):
    return built(source, shape, classes, tokens=tokens, **parameters)


# ---- the synthetic text ----


def joint_probabilities():
    """Of three letters in a row, (10, 10, 10), by the stationary distribution of the chain of
    pairs.
    """
    following = np.zeros((LETTERS**2, LETTERS))
    np.put_along_axis(following, followers(), np.array(PROBABILITIES)[None], axis=1)
    pairs = np.full(LETTERS**2, LETTERS**-2.0)
    for _ in range(500):
        pairs = (
            (pairs[:, None] * following).reshape(LETTERS, LETTERS, LETTERS).sum(axis=0).reshape(-1)
        )
    return (pairs[:, None] * following).reshape(LETTERS, LETTERS, LETTERS)


def conditional_entropy(joint):
    """Nats of the last letter given those before it, of a joint distribution or of counts."""
    shares = joint / joint.sum()
    given = shares / np.where(
        shares.sum(axis=-1, keepdims=True) > 0, shares.sum(axis=-1, keepdims=True), 1
    )
    return -(shares * np.log(np.where(given > 0, given, 1))).sum()


def test_the_entropy_rate_of_the_synthetic_text_is_known():
    """1.75 bits: by hand, by the stationary distribution, and counted in the text itself."""
    assert pytest.approx(1.75 * log(2)) == ENTROPY_RATE
    assert conditional_entropy(joint_probabilities()) == pytest.approx(ENTROPY_RATE)
    ids, alphabet = token_ids(synthetic_text())
    assert alphabet == "abcdefghij"
    counts = np.zeros((LETTERS,) * 3)
    np.add.at(counts, (ids[:-2], ids[1:-1], ids[2:]), 1)
    assert conditional_entropy(counts) == pytest.approx(ENTROPY_RATE, rel=0.01)
    assert ((counts > 0) <= (joint_probabilities() > 0)).all(), (
        "only the four letters of a pair follow it"
    )


def test_the_best_perplexity_on_windows_that_documents_name():
    """The first token of a window is predicted from one letter only, which says little: a model
    must look at two, which shows whether attention is learned.
    """
    first = conditional_entropy(joint_probabilities().sum(axis=0))
    assert first > 1.8 * ENTROPY_RATE
    best = {context: exp(((context - 1) * ENTROPY_RATE + first) / context) for context in (32, 64)}
    assert best == pytest.approx({32: 3.47, 64: 3.42}, abs=5e-3)
    assert exp(ENTROPY_RATE) == pytest.approx(3.364, abs=5e-4)


def test_the_synthetic_text_is_always_the_same():
    assert synthetic_text(500) == synthetic_text(1000)[:500]


# ---- windows ----


@pytest.mark.parametrize(("length", "context"), [(65, 64), (64, 9), (100, 1), (9, 8)])
def test_windows_tile_the_text_and_labels_are_what_follows(length, context):
    ids = np.random.default_rng(0).integers(5, size=length)
    x, y = windows(ids, context)
    assert x.shape == y.shape == ((length - 1) // context, context)
    assert np.array_equal(x.reshape(-1), ids[: x.size])
    assert np.array_equal(y.reshape(-1), ids[1 : x.size + 1])
    assert length - 1 - x.size < context, "what is left is shorter than a window"


def test_the_end_of_the_text_is_the_test_set(tmp_path):
    data = text(tmp_path / "t", "ab" * 50 + "cd" * 50, context=7, test_share=0.5)
    assert set(np.unique(data.train_x)) == set(np.unique(data.train_y)) == {0, 1}
    assert set(np.unique(data.test_x)) == set(np.unique(data.test_y)) == {2, 3}
    assert (data.classes, data.input_shape, data.tokens) == (4, (7,), True)
    assert data.samples(data.train_x).dtype == torch.int64


def test_the_vocabulary_is_that_of_the_whole_text_sorted():
    words = "zebra\n ünïcode 🦓 zebra"
    ids, vocabulary = token_ids(words)
    assert list(vocabulary) == sorted(set(words))
    assert "".join(vocabulary[index] for index in ids) == words


@pytest.mark.parametrize(
    ("words", "parameters", "counts"),
    [
        ("abc" * 1000, {"context": 10, "test_share": 0.2}, (239, 59)),
        ("a" * 650, {"context": 64}, (9, 1)),  # a window, and the token after it
    ],
)
def test_a_share_decides_how_much_is_for_testing(tmp_path, words, parameters, counts):
    data = text(tmp_path / "t", words, **parameters)
    assert (len(data.train_x), len(data.test_x)) == counts


def plan(data, **settings):
    """Of char-lm on data named so."""
    settings = {"model": "char-lm", "data": data, "workers": [{"count": 3}]} | settings
    return prepare(config.validate(settings))


def test_batches_of_text_are_tokens_with_the_next_as_label():
    x, y = plan("text").reader("worker-0").read(0, [6])[0]
    assert x.shape == y.shape == (6, 64)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1])


@pytest.mark.parametrize(
    ("words", "parameters", "says"),
    [
        ("", {}, "is empty"),
        (b"ab\xff", {}, "UTF-8 2"),
        ("a" * 640, {}, "64 text's 640 64 65"),
        ("a" * 640, {"test_share": 0.9}, "training 64"),
        ("abc", {"context": 0}, "1 0"),
        ("abc", {"context": 2.0}, "got 2.0"),
        ("abc", {"context": True}, "got True"),
        ("abc", {"context": "many"}, "got 'many'"),
        ("abc", {"test_share": 0}, "0 1 0"),
        ("abc", {"test_share": 1.0}, "got 1.0"),
        ("abc", {"test_share": "half"}, "got 'half'"),
        ("abc", {"contxt": 3}, "'contxt' test_share"),
    ],
)
def test_texts_that_cannot_be(tmp_path, words, parameters, says):
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        text(tmp_path / "t", words, **parameters)
    assert len(str(raised.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("nowhere.txt", "No such file"),
        (".", "Is a directory"),
        (3, "path 3"),
        ("zero\0byte", "read"),
    ],
)
def test_files_that_cannot_be_read(file, says):
    with pytest.raises(ConfigError, match=naming(says)):
        load(Data(name="text", parameters={"file": file}))


# ---- one's own tokens ----

ROWS = np.arange(12).reshape(3, 4) % 6


def test_ones_own_tokens():
    mine = data_set("mine", (ROWS, ROWS), (torch.tensor(ROWS), torch.tensor(ROWS)), tokens=True)
    assert (mine.classes, mine.tokens, mine.input_shape) == (6, True, (4,))
    assert torch.equal(mine.samples(mine.train_x), torch.tensor(ROWS))
    small = data_set(
        "mine", (ROWS.astype(np.uint8), ROWS), (ROWS.astype(np.uint8), ROWS), tokens=True
    )
    assert torch.equal(small.samples(small.train_x), torch.tensor(ROWS)), (
        "tokens are never normalised"
    )


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (ROWS, ROWS[:, 0], "numbers 0"),
        (ROWS, ROWS[:, :3], "one a token"),
        (ROWS / 2, ROWS, "0 float64 3 4"),
        (ROWS - 1, ROWS, "tokens"),
        (ROWS[0], ROWS, "tokens"),
        (ROWS[:, :0], ROWS, "tokens"),
        (ROWS, ROWS - 1, "labels train"),
        (ROWS + 1, ROWS, "6 6 vocabulary"),
    ],
)
def test_tokens_that_cannot_be(x, y, says):
    with pytest.raises(ConfigError, match=naming(says)):
        data_set("mine", (x, y), (ROWS, ROWS), classes=6, tokens=True)


# ---- models ----


def test_the_size_of_char_lm():
    """Embeddings, per block 12 D^2 + 13 D, the last LayerNorm, and the head; no buffers to travel
    behind gradients.
    """
    width, vocabulary, length = 64, 65, 32
    flat = FlatModel(build(shape=(length,), classes=vocabulary))
    blocks = 2 * (12 * width**2 + 13 * width)
    assert flat.size == (vocabulary + length) * width + blocks + 2 * width + vocabulary * (
        width + 1
    )
    assert flat.buffer_size == 0


@pytest.mark.parametrize("training", [True, False])
def test_char_lm_is_causal(training):
    """A token changes the logits at its own place and after it, and none before: with gradients and
    in evaluation.
    """
    model = build().train(training)
    tokens = torch.randint(5, (2, 8), generator=torch.Generator().manual_seed(0))
    for place in range(8):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 5
        with torch.set_grad_enabled(training):
            difference = (model(tokens) - model(changed)).abs().amax(dim=1)  # (N, T)
        assert difference[:, :place].max().item() < 1e-6 if place else True
        assert (difference[:, place:] > 1e-6).all(), "what comes after sees it"


def test_char_lm_knows_places_and_its_layers_begin_apart():
    model = build()
    logits = model(torch.zeros(1, 8, dtype=torch.int64))
    assert (logits[0, :, 2] - logits[0, :, 5]).abs().max() > 1e-6
    first, second = (block.linear1.weight for block in model.blocks)
    assert not torch.equal(first, second)


def cutting(classes):
    """Logits of the last token only."""
    return nn.Sequential(nn.Embedding(classes, classes), nn.Flatten(), nn.LazyLinear(classes))


def crossed(classes):
    """Classes last, where torch's cross-entropy has them second."""
    return nn.Embedding(classes, classes)


def too_few(classes):
    return nn.Embedding(classes - 1, classes)


def uneven():
    """torch asserts here."""
    return nn.MultiheadAttention(30, 4)


@pytest.mark.parametrize(
    ("source", "parameters", "says"),
    [
        (uneven, {}, "tokens 0 4"),
        ("char-lm", {"width": 30}, "width width 30 2 4"),
        ("char-lm", {"heads": 0}, "at least 1"),
        ("char-lm", {"layers": 0}, "at least 1"),
        ("char-lm", {"width": "wide"}, "tokens 0 4 (8,)"),
        ("char-lm", {"depth": 3}, "width layers"),
        ("mlp", {}, "tokens 0 4 (8,)"),
        ("resnet20", {}, "tokens 0 4 (8,)"),
        ("convnet", {}, "tokens 0 4 (8,)"),
        (cutting, {}, "5 2 5 8 samples 2 5"),
        (crossed, {}, "2 5 8 samples 2 8 5"),
        (too_few, {}, "tokens 0 4"),
        (nn.BatchNorm2d(3), {}, "tokens"),
        (nn.MultiheadAttention(4, 2), {}, "tokens"),
    ],
)
def test_models_that_do_not_fit_tokens(source, parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        build(source, **parameters)


@pytest.mark.parametrize("shape", [(1, 8, 8), (8,)])
def test_char_lm_on_what_is_no_text(shape):
    with pytest.raises(ConfigError, match=r"takes tokens|does not take samples of shape \(8,\)"):
        build(shape=shape, tokens=False)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"partition": "dirichlet"}, "Allowed shared"),
        ({"augment": "crop-flip"}, "crop-flip images"),
    ],
)
def test_dirichlet_and_augmentation_are_not_for_text(setting, says):
    with pytest.raises(ConfigError, match=naming(says)):
        plan({"name": "text", **setting})


def test_a_step_of_char_lm_can_be_timed():
    assert listed("char-lm").tokens
    assert step_s(on_random_samples(listed("char-lm"))) > 0


# ---- training and evaluation ----


def test_evaluation_is_the_mean_over_all_tokens():
    """A bigram table as the model: its loss and accuracy on the test labels by hand, whatever the
    batch size.
    """
    rng = np.random.default_rng(0)
    x, y = rng.integers(5, size=(2, 7, 8))
    mine = data_set("mine", (x, y), (x, y), tokens=True)
    table = rng.normal(size=(5, 5)).astype(np.float32)

    class Bigrams(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, tokens):
            return self.table(tokens).transpose(1, 2)

    task = LanguageModel(None, mine)
    weights = torch.tensor(table).reshape(-1)
    got = evaluate(FlatModel(Bigrams()), weights, task, task.test_set(), batch_size=3)
    shares = np.exp(table[x]) / np.exp(table[x]).sum(axis=-1, keepdims=True)
    assert got["loss"] == pytest.approx(
        -np.log(np.take_along_axis(shares, y[..., None], axis=-1)).mean(), rel=1e-5
    )
    assert got["accuracy"] == pytest.approx((table[x].argmax(axis=-1) == y).mean())


def test_a_text_that_repeats_is_learned_nearly_by_heart(tmp_path):
    """Before training, every character is as likely."""
    (tmp_path / "t").write_text("the quick brown fox. " * 100)
    record = raysync.run(
        {
            "engine": "virtual",
            "output": str(tmp_path),
            "model": {"name": "char-lm", "width": 32},
            "data": {"name": "text", "parameters": {"file": str(tmp_path / "t"), "context": 16}},
            "workers": [{"step_s": 1}],
            "workload": {"samples": 40 * 8},
            "batch_size": 8,
            "evaluation": {"marks": 4},
            "update": {"optimizer": "adamw", "lr": 0.01},
        }
    )
    losses = record.evaluations["loss"]
    assert losses.iloc[0] == pytest.approx(log(len({*"the quick brown fox. "})), rel=0.15)
    assert losses.iloc[-1] < losses.iloc[0] / 4


# ---- measures and tables ----


def measured(*losses, target=None, primary=ACCURACY):
    goal = None if target is None else Target(metric="loss", at_most=target)
    measures = Measures(100, goal, primary)
    for index, loss in enumerate(losses):
        metrics = {"accuracy": 0.5, "loss": loss}
        measures.feed([Evaluation(0, 0, index, 1.0 + index, metrics)])
    return measures


def test_the_time_to_a_loss_is_that_of_the_first_evaluation_at_or_below_the_target():
    assert measured(3.0, 2.0, 1.5, 1.75, 1.0, target=1.5).summary()["time_to_target_s"] == 3.0
    assert measured(3.0, nan, 2.0, target=1.5).time_to_target_s is None
    assert measured(3.0).time_to_target_s is None
    assert measured(3.0, target=2.0).summary()["target"] == {"metric": "loss", "at_most": 2.0}


def test_perplexity_is_e_to_the_loss():
    assert measured(5.0, 1.25).summary()["final_perplexity"] == exp(1.25)
    assert measured().summary()["final_perplexity"] is None
    assert measured(1e6).latest("perplexity") == inf
    assert isnan(measured(nan).latest("perplexity"))


@pytest.mark.parametrize(
    ("target", "primary", "heads"),
    [
        (None, ACCURACY, ["final accuracy", "seconds"]),
        ({"metric": "accuracy", "at_least": 0.95}, ACCURACY, ["final accuracy", "s to 95.0%"]),
        ({"metric": "loss", "at_most": 0.3}, ACCURACY, ["final accuracy", "s to loss 0.3"]),
        ({"metric": "loss", "at_most": 1.5}, PERPLEXITY, ["final perplexity", "s to loss 1.5"]),
    ],
)
def test_the_table_shows_what_fits_the_data_and_the_target(target, primary, heads, capsys):
    experiment = config.validate({"target": target})
    summary = measured(1.25).summary()
    rows = {"bsp": [{**summary, "status": "finished"}]}
    columns = table.table_of(rows, experiment, primary).columns
    narrow = [column for column in columns if column.narrow is not None]
    assert [column.heading for column in narrow][:2] == heads
    assert all(column.key in summary for column in narrow)
    table.print_table(rows, experiment, [0], primary)
    assert ("3.49" if primary is PERPLEXITY else "50.0%") in capsys.readouterr().out


def test_the_progress_line_shows_perplexity_for_tokens():
    def shown(primary, *losses):
        measures = measured(*losses, primary=primary)
        return facts_of(measures, timing_only=False).partition(" │")[0]

    assert shown(PERPLEXITY, 1.25) == "perplexity  3.49"
    assert shown(PERPLEXITY) == "perplexity     -"
    assert shown(ACCURACY, 1.25) == "accuracy 50.0%"
    assert metric_text("perplexity", 23456.0) == "2.3e+04"
