"""Base classes that all parts of an experiment file share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from raysync.config.yaml_reading import write_yaml
from raysync.core import paradigm
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms import make
from raysync.paradigms.class_loading import NotTrusted, untrusted_error
from raysync.paradigms.registry import short_name

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

MOST_S = 1e9  # about 30 years: sums of such times stay exact to a microsecond
# The largest numbers: no product of two overflows later. Seeds and counts that take memory have
# their own bounds.
MOST_WHOLE, MOST = 10**15, 1e30
MOST_SAMPLES = 10_000_000  # the indices of a batch are in memory at once
SEED_SETTINGS = ("seed", "seeds")
# what `set` of a paradigm may change: nothing that the rows of a comparison are compared at
ROW_SETTINGS = ("update", "local", "batch_size", "cluster.wire", "network")
# control characters but tab and line feed, which no text of a setting may contain
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
Repeats = Annotated[int, Field(ge=1, le=10_000)]  # a number of repeats or draws, all in memory


class Strict(BaseModel):
    """A block of settings: frozen, without unknown settings, and with finite, bounded numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    # a setting that is gone -> its value in records that still have it, and why it went
    gone: ClassVar[Mapping[str, tuple[object, str]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_gone(cls, settings: Any) -> Any:
        if not (cls.gone and isinstance(settings, Mapping)):
            return settings
        for name, (recorded, why) in cls.gone.items():
            if settings.get(name, recorded) != recorded:
                raise ValueError(f"{name}: {settings[name]}: there is no such setting now: {why}")
        return {name: value for name, value in settings.items() if name not in cls.gone}

    @property
    def present(self) -> dict[str, Any]:
        """The settings that are not None."""
        return {name: value for name, value in self if value is not None}

    @field_validator("*")
    @classmethod
    def _is_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if name not in SEED_SETTINGS:
            is_time = name == "trace" or (name.endswith("_s") and not name.endswith("_per_s"))
            _check_bounds(value, MOST_S if is_time else MOST)
        return value


def _check_bounds(value: Any, most: float) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_bounds(item, most)
    elif isinstance(value, int | float):
        bound = min(most, MOST_WHOLE) if isinstance(value, int) else most
        if not -bound <= value <= bound:
            text = f"{value:g}" if abs(value) < MOST**2 else "a number without bounds"
            raise ValueError(f"must be from {-bound:g} to {bound:g}; got {text}")


def check_plain(value: object, path: str = "") -> None:
    """Refuse control characters and integers above 64 bits in a setting of any kind.

    Args:
        value: plain data, as of an experiment file.
        path: the setting's path, for the `ValueError`.
    """
    where = f"{path}: " if path else ""
    if isinstance(value, str) and (found := FORBIDDEN.search(value)):
        raise ValueError(f"{where}a control character, {found[0]!r}, in {value[:100]!r}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where}a whole number has at most 64 bits; got a number without bounds")
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_plain(key, path)
            check_plain(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_plain(item, f"{path}[{index}]")


class Named(BaseModel):
    """A choice by name, with parameters: `ssp`, or `{name: ssp, staleness: 3}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="a registered name, or the user's own package.module:Name")

    @property
    def parameters(self) -> dict[str, Any]:
        """All settings beside the name."""
        return dict(self.model_extra or {})


def by_name(value: object) -> object:
    """Expand the short form `ssp` to `{name: ssp}`."""
    return {"name": value} if isinstance(value, str) else value


def _label(name: str, parameters: Mapping[str, Any]) -> str:
    texts = ", ".join(f"{parameter}={value_text(value)}" for parameter, value in parameters.items())
    return f"{short_name(name)}({texts})" if texts else short_name(name)


def value_text(value: object) -> str:
    """Format a setting for labels: 0.1 + 0.2 as 0.3, a choice with its parameters in brackets."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return _label(value["name"], {key: item for key, item in value.items() if key != "name"})
    if isinstance(value, float):
        return f"{value:.9g}"  # with 6 digits, different draws could get the same label
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inner_text, value))}]"
    if isinstance(value, Mapping):
        items = (f"{key!r}: {_inner_text(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    return str(value)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the first of some names for a message, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _inner_text(value: object) -> str:
    return repr(value) if isinstance(value, str) else value_text(value)


class ParadigmChoice(Named):
    """A synchronisation paradigm.

    Of a user's paradigm in an untrusted record, only the name is known.
    """

    set: dict[str, Any] | None = Field(
        None,
        min_length=1,
        description=(
            "settings of this row of a comparison alone, by their paths as for --set: within"
            f" {', '.join(ROW_SETTINGS)}"
        ),
    )
    instead_of: dict[str, Any] | None = Field(
        None, description="in records: the experiment's settings that `set` replaced"
    )
    _is_untrusted: bool = PrivateAttr(False)

    @field_validator("set")
    @classmethod
    def _is_of_a_row(cls, changes: dict[str, Any] | None) -> dict[str, Any] | None:
        for path in changes or {}:
            if not any(is_within(path, allowed) for allowed in ROW_SETTINGS):
                raise unknown_name("setting of a row", path, ROW_SETTINGS, listed=ROW_SETTINGS)
        return changes

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        absent = {name for name in ("set", "instead_of") if plain.get(name) is None}
        return {name: value for name, value in plain.items() if name not in absent}

    @model_validator(mode="after")
    def _exists(self) -> ParadigmChoice:
        try:
            make(self.name, **self.parameters)
        except NotTrusted:
            self._is_untrusted = True
        return self

    @property
    def can_be_made(self) -> bool:
        """Whether `make` works: not for a user's own class in an untrusted record."""
        return not self._is_untrusted

    def make(self, parameters: Mapping[str, Any] | None = None) -> paradigm.AnyParadigm:
        """Create a fresh paradigm; `Experiment.make` creates one that knows its workers.

        Args:
            parameters: replace the given ones.

        Raises:
            ConfigError: the class comes from an untrusted record, or a parameter is not allowed.
        """
        if self._is_untrusted:
            raise untrusted_error(f"the paradigm {self.label}")
        return make(self.name, **(self.parameters if parameters is None else parameters))

    @property
    def label(self) -> str:
        """The name, the given parameters and `set`; in tables stands `Experiment.label`."""
        if self.set is None:
            return _label(self.name, self.parameters)
        # in one order, however the file lists them
        changes = json.loads(json.dumps(self.set, sort_keys=True))
        changes = write_yaml(changes, width=2**30, flow=True).strip()
        return _label(self.name, {**self.parameters, "set": changes})


def is_within(path: str, block: str) -> bool:
    """Return whether a path names a block of settings, or a setting in it."""
    return f"{path}.".startswith(f"{block}.")


Choice = Annotated[Named, BeforeValidator(by_name)]
ParadigmSetting = Annotated[ParadigmChoice, BeforeValidator(by_name)]


def check_paradigm_labels(experiment: Experiment) -> None:
    """Refuse a comparison that lists a paradigm twice."""
    labels = [choice.label for choice in experiment.paradigms]
    if len(set(labels)) < len(labels):
        raise ValueError(f"paradigms: each can be listed only once, got {', '.join(labels)}")


def check_paradigms(experiment: Experiment) -> None:
    """Refuse paradigms that cannot run with so many workers."""
    for where, choice in experiment.named_paradigms():
        if not choice.can_be_made:
            continue
        try:
            why = experiment.make(choice).infeasible_reason(experiment.worker_count)
        except ConfigError as error:  # its parameters do not fit the workers
            why = str(error).removeprefix("paradigm ").removesuffix(".")
            raise ValueError(f"{where}: {why}") from error
        if why:
            raise ValueError(f"{where}: {choice.name}: {why}")
