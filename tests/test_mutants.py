"""The list of deliberate faults fits the code; `make mutants` tries them."""

from faults import MUTANTS
from mutants import broken


def test_every_fault_can_be_tried():
    reasons = {mutant.name: reason for mutant in MUTANTS if (reason := broken(mutant))}
    assert not reasons, "the code moved: follow it in tests/faults.py"
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
