"""The ZeRO paper's formula of what a device holds: 16 bytes a parameter, of which a stage divides its part.

Rajbhandari et al. 2020, section 3.1, for Adam in mixed precision: two bytes each for a parameter as it computes and its
gradient, four for its master copy, eight for Adam's moments.
"""

from typing import NamedTuple

from jzero.zero.stages import Gather, StagePlan


class PaperTerm(NamedTuple):
    """One term: bytes of a parameter, and over how many devices they are divided."""

    bytes_each: int
    n_shards: int

    def n_bytes(self, n_params: int) -> float:
        """What it comes to on one device."""
        return self.bytes_each * n_params / self.n_shards

    @property
    def formula(self) -> str:
        """The term as text.

        >>> PaperTerm(4, 8).formula, PaperTerm(2, 1).formula
        ('4P/8', '2P')
        """
        return f"{self.bytes_each}P" if self.n_shards == 1 else f"{self.bytes_each}P/{self.n_shards}"


class PaperTerms(NamedTuple):
    """The terms of a stage; their names are those of a closed form's parts."""

    parameters: PaperTerm
    optimizer_state: PaperTerm
    gradients: PaperTerm
    gathered_weights: PaperTerm


def paper_terms(plan: StagePlan, n_shards: int, n_groups: int = 1) -> PaperTerms:
    """The formula for a stage.

    Args:
        plan: what the stage means.
        n_shards: the size of the mesh's `shard` axis.
        n_groups: at two levels, the size of `replica`: the state is divided over the groups too, while gradients and
            the parameters that compute are a group's.

    Example:
        >>> from jzero.zero.stages import stage_plan
        >>> [term.formula for term in paper_terms(stage_plan(2), 64)]
        ['4P/64', '8P/64', '2P/64', '2P']
        >>> [term.formula for term in paper_terms(stage_plan(3), 8, 8)]
        ['4P/64', '8P/64', '2P/8', '2P/8']
    """
    over = lambda is_sharded: n_shards if is_sharded else 1
    state = over(plan.shards_state) * n_groups
    return PaperTerms(
        PaperTerm(4, state),
        PaperTerm(8, state),
        PaperTerm(2, over(plan.scatters_at_use)),
        PaperTerm(2, over(plan.gather is Gather.AT_USE)),
    )
