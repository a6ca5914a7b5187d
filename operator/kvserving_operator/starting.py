"""With which KV cache new pods start; pure.

Under a rollback policy no pod starts with what has passed no trial: it starts with what is in
force, and the change is tried on the new pods once they serve (docs/decisions/0019).
"""

from kvserving_operator.api.v1alpha1 import KVCacheDType, KVServingSpec
from kvserving_operator.live import KVSettings, asked
from kvserving_operator.profiles import allowed_dtypes
from kvserving_operator.trials.policy import is_safe, sixteen_bits
from kvserving_operator.trials.record import Trials


def starting(spec: KVServingSpec, trials: Trials) -> KVSettings:
    """Settings that new pods of a spec start with."""
    wanted = asked(spec)
    if spec.rollback_policy_ref is None or is_safe(wanted):
        return wanted
    if trials.running is not None and not trials.running.revision:
        return trials.running.remains
    # Nothing is settled before the first template, nor where the memory was lost.
    return sixteen_bits(wanted) if trials.settled is None else trials.settled.settings


def tried_on(spec: KVServingSpec) -> tuple[KVCacheDType, ...]:
    """Formats that pods of a spec may be switched to by a trial."""
    if spec.rollback_policy_ref is None:
        return ()
    return (spec.kv_cache.dtype, *allowed_dtypes(spec))
