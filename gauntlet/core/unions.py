"""Unions of configuration parts whose members come from the core and from packages."""

import inspect
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import BeingImportedError, kinds


@dataclass(frozen=True)
class OneOf:
    """The kinds of a part of the configuration: the core's own, each framework's, and those of other packages.

    It annotates the base class of the kinds, `Annotated[Training, OneOf("train", (OnnxModel,))]`, and is read when a
    model with such a field is built. A package's kind may import the module of that model, which is then built later.
    """

    part: str
    own: tuple[type[BaseModel], ...] = ()

    def kinds(self) -> dict[str, type[Any]]:
        """Return the kinds by the default of their field `kind`; raise ConfigError where two have the same."""
        frameworks = [kind for brought in kinds("framework").values() for kind in getattr(brought, self.part, ())]
        members: dict[str, type[Any]] = {}
        for member in (*self.own, *frameworks, *kinds(self.part).values()):
            name = str(member.model_fields["kind"].default)
            if name in members:
                raise ConfigError(f"two packages bring the {self.part} {name!r}; uninstall one of them")
            members[name] = member
        return members

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the union, which the key `kind` tells apart."""
        try:
            members = tuple(self.kinds().values())
        except BeingImportedError as error:  # pydantic then builds the model when it is used first
            raise PydanticUndefinedAnnotation(self.part, str(error)) from error
        if not members:
            return core_schema.no_info_before_validator_function(self._refuse, core_schema.any_schema())
        if len(members) == 1:
            names, schema = get_args(members[0].model_fields["kind"].annotation), handler.generate_schema(members[0])
            return core_schema.tagged_union_schema(dict.fromkeys(names, schema), discriminator="kind")
        return handler.generate_schema(Annotated[reduce(or_, members), Field(discriminator="kind")])

    def _refuse(self, value: Any) -> None:
        raise ValueError(f"no package that is installed brings a kind of {self.part}")


def models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models that a field may hold, inside unions, tuples and annotations."""
    return _models((field.annotation, *field.metadata))


def _models(annotations: tuple[Any, ...]) -> list[type[BaseModel]]:
    for annotation in annotations:
        if isinstance(annotation, OneOf):
            return [*annotation.kinds().values()]
    models = [a for a in annotations if inspect.isclass(a) and not get_args(a) and issubclass(a, BaseModel)]
    return models + [model for annotation in annotations for model in _models(get_args(annotation))]
