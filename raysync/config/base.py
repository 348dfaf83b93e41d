"""Base classes that all parts of an experiment file share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from raysync.core import paradigm
from raysync.paradigms import make
from raysync.paradigms.class_loading import NotTrusted, not_trusted
from raysync.paradigms.registry import called


class Strict(BaseModel):
    """A block of settings: unknown settings are refused, numbers are finite, and nothing can be
    changed afterwards.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Named(BaseModel):
    """A choice by name, with parameters: `ssp`, or `{name: ssp, staleness: 3}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="a registered name, or the user's own package.module:Name")

    @property
    def parameters(self) -> dict[str, Any]:
        """All settings beside the name."""
        return dict(self.model_extra or {})


def by_name(value: object) -> object:
    """Expand the short form: `ssp` stands for `{name: ssp}`."""
    return {"name": value} if isinstance(value, str) else value


def _label(name: str, parameters: Mapping[str, Any]) -> str:
    short = called(name)
    texts = ", ".join(f"{parameter}={_text(value)}" for parameter, value in parameters.items())
    return f"{short}({texts})" if texts else short


def _text(value: object) -> str:
    """Format a parameter; a paradigm that is a parameter of another one by its own label."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return _label(value["name"], {key: each for key, each in value.items() if key != "name"})
    return str(value)


class ParadigmChoice(Named):
    """A synchronisation paradigm. In a record that is not trusted, a paradigm of the user's own is
    known only by its name.
    """

    _only_named: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _exists(self) -> ParadigmChoice:
        try:
            make(self.name, **self.parameters)
        except NotTrusted:
            self._only_named = True
        return self

    @property
    def can_be_made(self) -> bool:
        """Whether `make` works: not if a record that is not trusted names a class of the user's
        own.
        """
        return not self._only_named

    def make(self, parameters: Mapping[str, Any] | None = None) -> paradigm.AnyParadigm:
        """Create a fresh paradigm; `Experiment.make` creates one that knows its workers.

        Args:
            parameters: in place of those that were given.

        Raises:
            ConfigError: the paradigm is not registered, and comes from a record that is not
                trusted; or a parameter is not allowed.
        """
        if self._only_named:
            raise not_trusted(f"the paradigm {self.label}")
        return make(self.name, **(self.parameters if parameters is None else parameters))

    @property
    def label(self) -> str:
        """The label in tables and folders: the name and the parameters that were given."""
        return _label(self.name, self.parameters)


Choice = Annotated[Named, BeforeValidator(by_name)]
ParadigmSetting = Annotated[ParadigmChoice, BeforeValidator(by_name)]
