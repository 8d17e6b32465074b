"""Where a model's taught categories are kept."""

from pathlib import Path

from recollect.modelfile import FILE_NAME, find_model, is_ready
from recollect.store import Place, store_place
from recollect.system.disk import data_folder

STORE_NAME = "taught.sqlite"
DEFAULT = "default"


def default_store(model: str | Path) -> Path:
    """Return the file in which the command line keeps what a model was taught: each model file has its own.

    `taught.sqlite` beside model.safetensors, `zoo.taught.sqlite` beside zoo.safetensors, and a file in the
    user's data folder for models that come with the package.
    """
    path = find_model(model)
    if is_ready(model):
        return data_folder() / path.stem / STORE_NAME
    return path.with_name(STORE_NAME if path.name == FILE_NAME else f"{path.stem}.{STORE_NAME}")


def place_of_store(model: str | Path, store: str | Place) -> Place:
    """Return where the store is that `store` means for a model."""
    return default_store(model) if store == DEFAULT else store_place(store)
