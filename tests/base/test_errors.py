"""Every error is jzero's own and one of Python's, and prints its sentence alone."""

import pickle

import pytest

import jzero
from jzero import errors

KINDS = {
    errors.ConfigError: ValueError,
    errors.BatchError: ValueError,
    errors.ModelError: ValueError,
    errors.LossScaleError: RuntimeError,
    errors.SkippedStepsError: RuntimeError,
    errors.CheckpointError: RuntimeError,
    errors.DamagedCheckpointError: RuntimeError,
    errors.LaunchError: RuntimeError,
    errors.OffloadError: OSError,
}
ALL = [x for x in vars(errors).values() if isinstance(x, type)]


@pytest.mark.parametrize("error", ALL)
def test_each_is_of_one_kind_and_exported(error):
    assert issubclass(error, errors.JzeroError)
    assert getattr(jzero, error.__name__) is error
    if error is not errors.JzeroError:
        assert [kind for kind in (ValueError, RuntimeError, OSError) if issubclass(error, kind)] == [KINDS[error]]


@pytest.mark.parametrize("error", ALL)
def test_the_message_is_the_sentence(error):
    sentence = "The disk under /nvme is full; make room."
    raised = error(sentence)
    for each in (raised, pickle.loads(pickle.dumps(raised))):
        assert (type(each), str(each), each.args) == (error, sentence, (sentence,))
