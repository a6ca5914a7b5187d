"""Metadata of a custom resource, as far as the operator reads it."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from kvserving_operator.api.base import ApiModel, matches


class ObjectMeta(ApiModel):
    """Standard object metadata; the API server owns its schema."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """Name of the object."""
    namespace: str = "default"
    """Namespace of the object."""
    uid: str = ""
    """Identity of the object across deletions."""
    generation: int = 0
    """Counter of spec changes."""
    resource_version: str = ""
    """Version for optimistic locking."""
    creation_timestamp: str | None = None
    """When the object was created, RFC 3339."""
    deletion_timestamp: str | None = None
    """When deletion was asked for, RFC 3339."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the object."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the object."""
    finalizers: tuple[str, ...] = ()
    """What must happen before the object goes away."""

    def is_label(self, longest: int) -> bool:
        """Whether the name is a DNS label of at most so many characters."""
        return len(self.name) <= longest and matches(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", self.name)


class ResourceModel(ApiModel):
    """A whole custom resource."""

    api_version: Annotated[str, WithJsonSchema({"type": "string"})] = "kvserving.dev/v1alpha1"
    """Version of the schema."""
    kind: Annotated[str, WithJsonSchema({"type": "string"})] = ""
    """Kind of the resource."""
    metadata: ObjectMeta
    """Standard object metadata."""

    def owner_reference(self) -> dict[str, Any]:
        """Give the reference by which children are removed with this object."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.metadata.name,
            "uid": self.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
