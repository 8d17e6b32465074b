"""What tests of pretrained weights share."""

import importlib.util
import os
from pathlib import Path

import pytest

from recollect.pretrained import PUBLISHED

HAVE_WEIGHTS = all(importlib.util.find_spec(one.package) for one in PUBLISHED.values())
needs_weights = pytest.mark.skipif(
    not HAVE_WEIGHTS,
    reason="needs the weights of the extra 'pretrained'",
)
DATA = os.environ.get("RECOLLECT_DATA")
needs_photographs = pytest.mark.skipif(
    not (DATA and (Path(DATA) / "grocery" / "photos.zip").is_file()),
    reason="needs grocery/photos.zip below RECOLLECT_DATA",
)
