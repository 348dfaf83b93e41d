"""`task: hf:NAME`: a model of transformers, whole or with adapters of peft (LoRA)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from raysync.config import Update
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call_checked, load_reference, may_import
from raysync.training.adapters.huggingface_padding import Collate, collator, padder
from raysync.training.adapters.packages import alike_in_all_processes, mapping_of, require
from raysync.training.task import Average, Task
from raysync.users_code import users_code

# name -> the class of transformers that puts this head on a model
HEADS = {
    "causal-lm": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "question-answering": "AutoModelForQuestionAnswering",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
# heads with an accuracy
CLASSIFY = ("image-classification", "sequence-classification", "token-classification")
# head -> peft's name, which makes peft train a fresh head beside the adapters
LORA_TASKS = {
    "causal-lm": "CAUSAL_LM",
    "question-answering": "QUESTION_ANS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}
PARTS = ("train", "test", "validation")
COLLATE = "collate_fn"
IGNORED = -100  # transformers leave this label out of a loss
# Settings by which transformers would run code that comes with a model, or fetch some.
CODE = frozenset({"trust_remote_code", "auto_map", "custom_pipelines", "code_revision"})
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # of all that reads a folder
# folder of a base model built from a configuration, below the folder of its adapters
BASE = "base"


class HuggingFaceTask(Task):
    """A model of transformers with a head, and the user's data."""

    def __init__(
        self,
        source: str,
        /,
        *,
        head: str,
        data: str,
        config: Mapping[str, Any] | None = None,
        data_parameters: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            source: a type of model, such as `distilbert`, which is built from its configuration; or
                a local folder of `save_pretrained`, with a slash: `./folder`.
            head: a name in `HEADS`.
            data: `package.module:function`, which returns `{"train": ..., "test": ...}`, perhaps
                with `validation` and `collate_fn`. Data sets are map-style, and samples are dicts
                of the model's arguments, with `labels`.
            config: settings of the model's configuration.
            data_parameters: arguments of that function.
            lora: arguments of `peft.LoraConfig`; None: all parameters are trained.

        Raises:
            ConfigError: one of these does not exist, or a package is missing.
        """
        self._source, self._head, self._data = source, head, data
        if head not in HEADS:
            raise unknown_name("head", head, HEADS, where=self._where)
        self._settings = mapping_of(config, f"{self._where}: config")
        for name in CODE.intersection(self._settings):
            raise ConfigError(f"{self._where}: config: {name}: code of a model is not run.")
        self._data_parameters = mapping_of(data_parameters, f"{self._where}: data_parameters")
        self._lora = None if lora is None else mapping_of(lora, f"{self._where}: lora")
        self._folder = Path(source).expanduser().absolute() if "/" in source else None
        require("transformers", "huggingface", self._where)
        if lora is not None:
            require("peft", "huggingface", self._where)
        if may_import():  # a record's model is built without its data
            load_reference(data, f"{self._where}: data")
        _ = self._config  # a folder or a type that does not exist is refused now

    def __getstate__(self) -> dict[str, Any]:
        cached = ("_config", "_tokenizer", "_parts", "_collate")
        return {name: value for name, value in vars(self).items() if name not in cached}

    @property
    def _where(self) -> str:
        return f"task {self.name}"

    @property
    @override
    def name(self) -> str:
        return f"hf:{self._source}"

    @property
    @override
    def model_name(self) -> str:
        name = self._folder.name if self._folder else self._source
        return f"{name} with LoRA" if self._lora is not None else name

    @property
    @override
    def data_name(self) -> str:
        return self._data.rpartition(":")[2]

    @property
    @override
    def primary(self) -> str:  # type: ignore[override]
        return "accuracy" if self._classifies else "loss"

    @property
    @override
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self._classifies

    @property
    def _classifies(self) -> bool:
        if self._head == "token-classification":
            return True
        kind = getattr(self._config, "problem_type", None)
        return (
            self._head in CLASSIFY
            and self._config.num_labels > 1
            and kind in (None, "single_label_classification")
        )

    @cached_property
    def _config(self) -> Any:
        auto = require("transformers", "huggingface", self._where).AutoConfig
        if self._folder is None:
            return self._from_settings(auto)
        if not (self._folder / "config.json").is_file():
            what = "has no config.json" if self._folder.is_dir() else "does not exist"
            raise ConfigError(
                f"{self._where}: the folder {self._folder} {what}; it must be one that"
                " save_pretrained wrote."
            )
        _refuse_unknown(self._settings, auto.from_pretrained(self._folder, **LOCAL), self._where)
        return auto.from_pretrained(self._folder, **LOCAL, **self._settings)

    def _from_settings(self, auto: Any) -> Any:
        module = "transformers.models.auto.configuration_auto"
        types = require(module, "huggingface", self._where).CONFIG_MAPPING
        if self._source not in types:
            example = "a type of model of transformers, such as bert, distilbert, gpt2"
            allowed = [example, "./FOLDER"]
            raise unknown_name("type of model", self._source, types, self._where, allowed)
        _refuse_unknown(self._settings, auto.for_model(self._source), self._where)
        with users_code(f"{self._where}: config"):
            return auto.for_model(self._source, **self._settings)

    @override
    def build_model(self) -> nn.Module:
        transformers = require("transformers", "huggingface", self._where)
        kind = getattr(transformers, HEADS[self._head])
        if type(self._config) not in kind._model_mapping:
            raise ConfigError(
                f"{self._where}: head: {self._config.model_type} has no {self._head} in"
                " transformers."
            )
        config = copy.deepcopy(self._config)
        with users_code(f"{self._where}: model"):
            if self._folder is None:
                model = kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
            else:
                model = kind.from_pretrained(
                    self._folder, config=config, dtype=torch.float32, **LOCAL
                )
        return model if self._lora is None else self._with_adapters(model, self._lora)

    def _with_adapters(self, model: Any, settings: Mapping[str, Any]) -> nn.Module:
        peft = require("peft", "huggingface", self._where)
        where = f"{self._where}: lora"
        arguments = {"task_type": LORA_TASKS.get(self._head), **settings}
        with users_code(where):
            config = call_checked(peft.LoraConfig, where, arguments, {})
            adapted: nn.Module = peft.get_peft_model(model, config)
        return adapted

    @cached_property
    def _parts(self) -> dict[str, Any]:
        where = f"{self._where}: data {self._data}"
        function = load_reference(self._data, where)
        with alike_in_all_processes(), users_code(where):
            parts = call_checked(function, where, self._data_parameters, {})
        if not isinstance(parts, Mapping):
            raise ConfigError(
                f"{where}: must return a mapping with train and test, got {type(parts).__name__}."
            )
        for name in parts:
            if name not in (*PARTS, COLLATE):
                raise unknown_name("part", name, [*PARTS, COLLATE], where)
        if missing := [name for name in ("train", "test") if parts.get(name) is None]:
            raise ConfigError(f"{where}: returns no {missing[0]!r}.")
        return dict(parts)

    @override
    def train_set(self) -> Dataset[Any]:
        return self._parts["train"]  # type: ignore[no-any-return]

    @override
    def test_set(self) -> Dataset[Any]:
        return self._parts["test"]  # type: ignore[no-any-return]

    @override
    def validation_set(self) -> Dataset[Any] | None:
        return self._parts.get("validation")

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer of the folder; without one, a `padder`."""
        transformers = require("transformers", "huggingface", self._where)
        if self._folder is not None and (self._folder / "tokenizer_config.json").is_file():
            return transformers.AutoTokenizer.from_pretrained(self._folder, **LOCAL)
        return padder(getattr(self._config, "pad_token_id", None) or 0)

    @cached_property
    def _collate(self) -> Collate:
        return self._parts.get(COLLATE) or collator(self._head, self._tokenizer)

    @override
    def collate(self, samples: list[Any]) -> Any:
        return dict(self._collate(samples))

    @override
    def labels(self, samples: Dataset[Any]) -> Sequence[int]:
        if not self._classifies or self._head == "token-classification":
            return super().labels(samples)
        # this reads all samples
        ordered = (samples[index] for index in range(len(samples)))  # type: ignore[arg-type]
        return [int(sample["labels"]) for sample in ordered]

    @override
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the output's own loss: of tokens a mean over labels (see training/README.md)."""
        return _loss_of(model(**batch))

    @override
    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return the loss and, with classes, accuracy; over labels, not samples."""
        output = model(**batch)
        loss, labels = float(_loss_of(output)), batch.get("labels")
        if not isinstance(labels, Tensor):
            return {"loss": loss}
        if self._head == "causal-lm":
            labels = labels[..., 1:]  # nothing predicts the first token
        is_counted = labels != IGNORED
        count = int(is_counted.sum())
        values = {"loss": Average(loss * count if count else 0.0, count)}
        if self._classifies:
            correct = int((output.logits.argmax(-1) == labels)[is_counted].sum())
            values["accuracy"] = Average(correct, count)
        return values

    @override
    def update(self, model: nn.Module, file: Update, epochs: float) -> Mapping[str, Any]:
        return {"lr_scaling": "none"}  # as under transformers' Trainer

    def save_pretrained(self, model: nn.Module, folder: Path) -> None:
        """Write a model, with LoRA the adapters, as its library's `save_pretrained` does."""
        saved: Any = model
        if self._lora is not None and self._folder is None:
            base = copy.deepcopy(saved).unload()
            base.save_pretrained(folder / BASE)  # it was built here, so it is nowhere else
            saved.peft_config["default"].base_model_name_or_path = str(folder / BASE)
        saved.save_pretrained(folder)
        if self._folder is not None and (self._folder / "tokenizer_config.json").is_file():
            self._tokenizer.save_pretrained(folder)


def _loss_of(output: Any) -> Tensor:
    loss = getattr(output, "loss", None)
    if loss is None:
        raise TypeError("the model's output has no loss: samples need `labels`")
    return loss  # type: ignore[no-any-return]


def _refuse_unknown(settings: Mapping[str, Any], config: Any, where: str) -> None:
    """Refuse settings that a configuration lacks; transformers would ignore them."""
    known = [name for name in config.to_dict() if not name.startswith("_")]
    for name in settings:
        if not hasattr(config, name):
            raise unknown_name("setting", name, known, f"{where}: config")
