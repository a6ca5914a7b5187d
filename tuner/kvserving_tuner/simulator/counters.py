"""What an engine counts from its start, as its metrics do."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals; tokens unless said otherwise."""

    steps: int = 0
    generation_tokens: int = 0
    prompt_tokens: int = 0
    """Of requests that have their first token."""
    preemptions: int = 0
    """Times that a sequence lost its place."""
    reported_preemptions: int = 0
    """As the engine's metric has them: a preemption counts once its victim gets a token again."""
    finished: int = 0
    """Requests."""
    too_long: int = 0
    """Requests that were refused because nothing could ever serve them."""
    rejected_by_requests: int = 0
    """Requests that were refused because too many were in flight."""
    rejected_by_tokens: int = 0
    """Requests that were refused because too many prompt tokens were ahead of them."""
    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0
    """Prompt tokens computed, those of preempted sequences again."""
    switches: int = 0
    """Live switches of format or eviction."""

    @property
    def rejected(self) -> int:
        """Requests that were refused on arrival, for whatever reason."""
        return self.too_long + self.rejected_by_requests + self.rejected_by_tokens
