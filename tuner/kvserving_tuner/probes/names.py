"""Names of what quality is measured with."""

from enum import StrEnum


class Probe(StrEnum):
    """What quality is measured with."""

    LIKELIHOOD = "Likelihood"
    """How likely prompts are to the model, token by token."""
    NEEDLE = "Needle"
    """One fact in a long text."""
    RECALL = "Recall"
    """What was said once in a long conversation."""
    STRUCTURED_OUTPUT = "StructuredOutput"
    """A JSON object with given fields, after a long text."""
    GROUNDEDNESS = "Groundedness"
    """A summary without figures and names that its text does not have."""
    REFERENCES = "References"
    """Answers to a user's own prompts, held against references."""
