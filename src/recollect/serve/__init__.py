"""The HTTP service: teach and recognise over the network.

A request passes `protocol` (slow clients), `gate` (hosts, origins, sizes, the log), `api` (what each call
does) and `engine` (one pass of the extractor for many waiting requests).
"""

from pathlib import Path

PAGE = Path(__file__).parent / "page"  # the files of the page
