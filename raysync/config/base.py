"""What all parts of an experiment file share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from raysync.core import paradigm
from raysync.paradigms import make
from raysync.paradigms.references import NotTrusted, not_trusted
from raysync.paradigms.registry import called


class Strict(BaseModel):
    """A block of settings: unknown ones are refused, numbers are finite, nothing changes
    afterwards.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Named(BaseModel):
    """Something by name, with parameters: `ssp`, or `{name: ssp, staleness: 3}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="a registered name, or the user's own package.module:Name")

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything beside the name."""
        return dict(self.model_extra or {})


def by_name(value: object) -> object:
    """`ssp` is short for `{name: ssp}`."""
    return {"name": value} if isinstance(value, str) else value


def _label(name: str, parameters: Mapping[str, Any]) -> str:
    short = called(name)
    given = ", ".join(f"{parameter}={_shown(value)}" for parameter, value in parameters.items())
    return f"{short}({given})" if given else short


def _shown(value: object) -> str:
    """A parameter; the paradigm that another one names, as it is called itself."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return _label(value["name"], {key: each for key, each in value.items() if key != "name"})
    return str(value)


class ParadigmChoice(Named):
    """A synchronisation paradigm. The choice of a record that nobody trusts may name one that is
    only known by its name.
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
        """Whether `make` gives one: not where a record names a class of the user's own, and is not
        trusted.
        """
        return not self._only_named

    def make(self) -> paradigm.AnyParadigm:
        """A fresh one.

        Raises:
            ConfigError: the choice is that of a record, is not registered, and the record is not
                trusted.
        """
        if self._only_named:
            raise not_trusted(f"the paradigm {self.label}")
        return make(self.name, **self.parameters)

    @property
    def label(self) -> str:
        """What tables and folders call it: the name and the parameters that were given."""
        return _label(self.name, self.parameters)


Choice = Annotated[Named, BeforeValidator(by_name)]
ParadigmSetting = Annotated[ParadigmChoice, BeforeValidator(by_name)]
