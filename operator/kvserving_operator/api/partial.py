"""A model in which every field may be left out: what one object changes of another one."""

from typing import Annotated, Any

from pydantic import Field, create_model

from kvserving_operator.api.base import ApiModel


def partial(model: type[ApiModel], name: str) -> type[ApiModel]:
    """Give a model with the same fields, types and limits, none of them required or with a default.

    Rules of the model that compare fields are left to whoever puts both together.
    """
    fields: dict[str, Any] = {}
    for key, info in model.model_fields.items():
        kind: Any = info.annotation
        if isinstance(kind, type) and issubclass(kind, ApiModel):
            kind = partial(kind, f"{kind.__name__}Overrides")
        if info.metadata:
            kind = Annotated[kind, *info.metadata]
        fields[key] = (kind | None, Field(default=None, description=info.description))
    return create_model(name, __base__=ApiModel, __doc__=model.__doc__, **fields)


def merged(below: Any, above: Any) -> Any:
    """Plain data with what `above` has in place of what `below` has, mapping by mapping."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys()}
    return {**below, **above, **both}
