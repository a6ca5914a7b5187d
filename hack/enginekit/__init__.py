"""What stands for vLLM in tests without it."""

from enginekit.modules import stand_in
from enginekit.ranks import RankExecutor, ranks

__all__ = ["RankExecutor", "ranks", "stand_in"]
