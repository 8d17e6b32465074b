"""Where a model's taught categories are kept."""

from pathlib import Path

from recollect.modelfile import find_model, is_ready
from recollect.store import store_path
from recollect.system.disk import data_folder

STORE_NAME = "taught.sqlite"
DEFAULT = "default"


def default_store(model: str | Path) -> Path:
    """Return the file in which the command line keeps what a model was taught."""
    if is_ready(model):
        return data_folder() / find_model(model).stem / STORE_NAME
    return find_model(model).parent / STORE_NAME


def store_file(model: str | Path, store: str | Path | None) -> Path | None:
    """Return the file of the store that `store` means for a model, or `None` for memory."""
    return default_store(model) if store == DEFAULT else store_path(store)
