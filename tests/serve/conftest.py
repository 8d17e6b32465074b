"""Models to serve."""

import pytest

from recollect.modelfile import save_model
from serving import serving


@pytest.fixture(scope="session")
def model(tmp_path_factory, make_model):
    """The file of a small model with attention."""
    path = tmp_path_factory.mktemp("served") / "model.safetensors"
    save_model(path, make_model())
    return path


@pytest.fixture
def service(model):
    """A service without a token, with one thread for pictures; what it is taught is in memory."""
    with serving(model, threads=1) as running:
        yield running
