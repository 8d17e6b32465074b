"""`recollect serve`: the model to serve, and a token that nobody else sees."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from recollect.errors import ExtraError
from recollect.modelfile import read_header
from recollect.pretrained import extractor_weights
from recollect.serve.settings import TOKEN_VARIABLE, Settings
from recollect.system.progress import say

_OPTION = "--token"


def serve(settings: Settings, *, any_model: bool = False) -> None:
    """Serve a model until it is stopped; with `any_model`, another one where it cannot be loaded."""
    settings.check()
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise ExtraError("the service is not installed: pip install 'recollect[serve]'")
    read_header(settings.model)  # before anything slow
    from recollect.serve.run import serve as run

    run(replace(settings, model=_loadable(settings.model)) if any_model else settings)


def _loadable(ready: Path) -> Path:
    """Return the ready-made model, or the one of characters where its weights are not installed."""
    try:
        extractor_weights(read_header(ready).spec.extractor)
    except ExtraError as error:
        say(f"{error}; serving the model of characters, glyphs, instead")
        return Path("glyphs")
    return ready


def hide_token(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Start this command again with its token in the environment, where `ps` does not show it."""
    kept: list[str] = []
    token = ""
    rest = iter(words)
    for word in rest:
        if word == _OPTION:
            token = next(rest)
        elif word.startswith(f"{_OPTION}="):
            token = word.partition("=")[2]
        else:
            kept.append(word)
    sys.stderr.flush()
    os.execve(sys.executable, kept, {**environment, TOKEN_VARIABLE: token})  # noqa: S606 -- our own command
