"""Models of transformers, whole and with LoRA: built from configurations, nothing is downloaded."""

import copy
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import raysync
from raysync import config
from raysync.cli import app
from raysync.errors import ConfigError
from raysync.training.evaluation import ModelEvaluation, evaluate
from raysync.training.preparation import prepare
from raysync.training.vectors.flat import FlatModel
from tests.builders.messages import naming, tells
from tests.builders.token_data import CLASSES, NO_DROPOUT, TINY
from tests.builders.virtual import learn, weights_of

pytestmark = [
    pytest.mark.usefixtures("one_thread", "transformers"),
    # peft 0.21 asks transformers 5.23 for it
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

DATA = "tests.builders.token_data"
WORKERS, ROUNDS, BATCH = 3, 6, 4
SETTINGS = {
    "engine": "virtual",
    "batch_size": BATCH,
    "workers": [{"name": f"w{n}", "step_s": 1 + n} for n in range(WORKERS)],
    "update": {"lr": 0.1, "momentum": 0.9},
    "workload": {"iterations_per_worker": ROUNDS},
    "evaluation": {"marks": 2, "batch_size": 8},
}


def planned(source="distilbert", head="sequence-classification", data="texts", **parameters):
    settings = TINY | NO_DROPOUT | {"num_labels": CLASSES}
    given = {"config": settings, "data": f"{DATA}:{data}"} | parameters
    task = {"name": f"hf:{source}", "head": head} | given
    return prepare(config.validate(SETTINGS | {"task": task}))


@pytest.fixture(scope="module")
def sequences(transformers):
    return planned()


def trainable(module):
    return [each for each in module.parameters() if each.requires_grad]


def flat(module):
    return torch.cat([each.detach().reshape(-1) for each in trainable(module)])


def train_alone(training, loss):
    """torch, one process; `loss` is of the module and the samples of all workers."""
    module, task = training.build().train(), training.task
    optimizer = torch.optim.SGD(trainable(module), lr=0.1, momentum=0.9)
    batches = [training.batches(slot) for slot in training.shards]
    for clock in range(ROUNDS):
        parts = [
            [task.train_set()[index] for index in each.indices(clock, BATCH)] for each in batches
        ]
        optimizer.zero_grad()
        loss(module, task, parts).backward()
        optimizer.step()
    return flat(module)


def of_all(module, task, parts):
    """The loss of one batch of all samples, padded together."""
    return module(**task.collate([sample for part in parts for sample in part])).loss


def mean_of_parts(module, task, parts):
    return sum(module(**task.collate(part)).loss for part in parts) / len(parts)


def distance(training, loss):
    _, driver = learn(training, "bsp")
    expected = train_alone(training, loss)
    assert (expected - flat(training.build())).abs().max().item() > 1e-2  # it has learned
    return (weights_of(driver)[: len(expected)] - expected).abs().max().item()


def test_bsp_equals_the_n_fold_batch_of_padded_sequences(sequences):
    """Each worker pads its own batch, and the one process all samples together: no difference."""
    assert distance(sequences, of_all) < 1e-5


@pytest.mark.parametrize(
    ("update", "expected"),
    [({}, "none"), ({"optimizer": "adamw"}, "none"), ({"lr_scaling": "linear"}, "linear")],
)
def test_the_rate_is_not_multiplied_by_the_workers_unless_the_file_says_so(
    sequences, update, expected
):
    file = config.validate(SETTINGS | {"update": update})
    training = prepare(file, task=sequences.task)
    assert training.experiment.update.lr_scaling == expected


def test_with_a_label_a_token_bsp_is_the_mean_of_the_workers_losses():
    """Workers are weighted by samples, as in torch's DDP; not by their labelled tokens."""
    training = planned(head="token-classification", data="tagged")
    assert distance(training, mean_of_parts) < 1e-5
    assert distance(training, of_all) > 1e-4


def test_lora_trains_and_sends_the_adapters_alone(sequences, peft):
    training = planned(lora={"r": 2, "target_modules": ["q_lin", "v_lin"]})
    module = training.build()
    names = [name for name, each in module.named_parameters() if each.requires_grad]
    assert all("lora_" in name or "classifier" in name for name in names)
    adapters = 2 * 2 * (16 + 16)  # r = 2, for q and v: (16, 2) and (2, 16)
    head = 16 * 16 + 16 + 16 * CLASSES + CLASSES
    assert training.parameters == adapters + head < sequences.parameters
    assert training.vector_bytes == 4 * (adapters + head)
    frozen = copy.deepcopy([each for each in module.parameters() if not each.requires_grad])
    assert distance(training, of_all) < 1e-5
    flat_model = FlatModel(module)
    _, driver = learn(training, "bsp")
    flat_model.read_weights(weights_of(driver))
    after = [each for each in module.parameters() if not each.requires_grad]
    assert all(torch.equal(*pair) for pair in zip(frozen, after, strict=True))


@pytest.mark.parametrize(
    ("kind", "data"), [("sequence-classification", "texts"), ("token-classification", "tagged")]
)
def test_loss_and_accuracy_are_means_over_labels(kind, data):
    """However the samples are batched."""
    training = planned(head=kind, data=data)
    task, module = training.task, training.build().eval()
    correct, losses, count = 0, 0.0, 0
    samples = task.validation_set() or task.test_set()
    for sample in samples:
        batch = task.collate([sample])
        logits = module(**batch).logits.reshape(-1, CLASSES)
        labels = batch["labels"].reshape(-1)
        losses += cross_entropy(logits, labels, reduction="sum", ignore_index=-100).item()
        correct += int((logits.argmax(1) == labels).sum())
        count += int((labels != -100).sum())
    for batch_size in (1, 7):
        model = FlatModel(training.build())
        got = evaluate(model, model.initial(), task, samples, batch_size)
        assert got["accuracy"] == pytest.approx(correct / count)
        assert got["loss"] == pytest.approx(losses / count, rel=1e-5)
    assert (task.primary, task.higher_is_better) == ("accuracy", True)


def test_dirichlet_deals_out_sequences_by_their_labels(sequences):
    task = sequences.task
    assert task.labels(task.train_set()) == [each["labels"] for each in task.train_set()]
    tokens = planned(head="token-classification", data="tagged").task
    with pytest.raises(ConfigError, match=naming("`targets`")):
        tokens.labels(tokens.train_set())


def test_a_language_model_learns_from_its_inputs():
    model = {"vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    training = planned("gpt2", "causal-lm", "plain", config=model | quiet | ends)
    assert training.task.primary == "loss"
    batch = training.task.collate(training.task.train_set()[:5])
    assert ((batch["labels"] == -100) == (batch["attention_mask"] == 0)).all()
    evaluation = ModelEvaluation(training.model, training.build(), training.experiment)
    _, driver = learn(training, "bsp")
    initial, samples = evaluation.model.initial(), training.task.test_set()
    before, one_by_one = (
        evaluate(evaluation.model, initial, training.task, samples, size)["loss"] for size in (8, 1)
    )
    assert before == pytest.approx(one_by_one, rel=1e-5)  # a mean over the tokens to predict
    assert evaluation.measure(weights_of(driver), is_last=True)["loss"] < before


def test_a_folder_is_trained_on_and_written_again(sequences, transformers, tmp_path):
    module = sequences.build().eval()
    sequences.task.save_pretrained(module, tmp_path / "model")
    reread = planned(str(tmp_path / "model"), config={})
    assert torch.equal(flat(reread.build()), flat(module))  # the fresh seed is not used
    auto = transformers.AutoModelForSequenceClassification
    theirs = auto.from_pretrained(tmp_path / "model", local_files_only=True)
    batch = reread.task.collate(reread.task.test_set()[:4])
    assert torch.allclose(theirs(**batch).logits, module(**batch).logits)


@pytest.mark.filterwarnings("ignore")
def test_adapters_are_written_with_the_base_that_they_need(transformers, peft, tmp_path):
    training = planned(lora={"r": 2, "target_modules": ["q_lin"]})
    module = training.build().eval()
    with torch.no_grad():
        for each in trainable(module):
            each += 0.1
    training.task.save_pretrained(module, tmp_path)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", local_files_only=True
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    batch = training.task.collate(training.task.test_set()[:4])
    assert torch.allclose(theirs(**batch).logits, module(**batch).logits, atol=1e-6)
    assert module(**batch).logits.shape == (4, CLASSES)  # the module is as it was


@pytest.mark.filterwarnings("ignore")
def test_the_model_of_a_run_is_exported_as_a_folder(transformers, tmp_path, monkeypatch):
    """The record is not trusted, so the data that it names are not imported for that."""
    training = planned()
    record = raysync.run(training.experiment.model_copy(update={"output": tmp_path / "runs"}))
    monkeypatch.setitem(sys.modules, DATA, None)  # its import would raise an error
    done = CliRunner().invoke(app, ["export", str(record.path), str(tmp_path / "folder")])
    assert done.exit_code == 0, done.output
    auto = transformers.AutoModelForSequenceClassification
    theirs = auto.from_pretrained(tmp_path / "folder", local_files_only=True)
    batch = training.task.collate(training.task.test_set()[:4])
    ours = raysync.load(record.path).model()
    assert torch.equal(theirs(**batch).logits, ours(**batch).logits)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head": "token-clasification"}, "'token-classification'"),
        ({"source": "distilbrt"}, "'distilbert'"),
        ({"source": "./nowhere"}, "exist"),
        ({"source": "tests/builders", "config": {}}, "config.json"),
        ({"config": {"n_layrs": 2}}, "'n_layers'"),
        ({"config": {"dim": 15, "n_heads": 2}}, "15"),
        ({"config": 3}, "settings"),
        ({"head": "seq2seq-lm"}, "seq2seq-lm"),
        ({"data": "nonesuch"}, "'nonesuch'"),
        ({"data": "nothing"}, "mapping"),
        ({"data": "without_test"}, "'test'"),
        ({"data": "wrong_part"}, "'test'"),
        ({"data": "plain"}, "loss: `labels`"),
        ({"data": "unlabelled_test"}, "metrics: TypeError: model's"),
        ({"data_parameters": {"cuont": 3}}, "cuont"),
        ({"lora": {"rank": 8}}, "rank"),
        ({"lora": {"target_modules": ["nowhere"]}}, "modules"),
        ({"haed": 1}, "haed"),
    ],
)
def test_mistakes_are_answered_in_a_line_or_two(parameters, message, peft):
    with pytest.raises(ConfigError) as caught:
        planned(**parameters)
    assert tells(str(caught.value), message)
    assert len(str(caught.value).splitlines()) <= 2
