"""Measure the speed and memory claims and print ratios; nothing else should be running."""

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks import blocks, learning, lowshot, memory, meta, onnx, page, recogniser, service

blocks.main()
learning.main()
meta.main()
recogniser.main()
service.main()
lowshot.main()
onnx.main()
if shutil.which("chromium"):
    page.main()
else:
    print("the page: there is no chromium here")
with tempfile.TemporaryDirectory() as name:
    os.environ["RECOLLECT_CACHE"] = f"{name}/cache"
    release = Path(name) / "release"
    pixels = memory.write_release(release)
    memory.main(release, Path(name) / "runs", pixels)
    learning.large_pictures(f"mini-imagenet:{release}")
