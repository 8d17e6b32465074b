"""The log: a line of JSON for each request and each event, on standard error."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

REQUESTS = "recollect.serve.requests"  # the logger whose messages are lines of JSON already


def timestamp(seconds: float) -> str:
    """Return a moment in UTC.

    >>> timestamp(0)
    '1970-01-01T00:00:00.000+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class JsonLines(logging.Formatter):
    """Makes a line of each record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        if record.name == REQUESTS:
            return message
        words = {"time": timestamp(record.created), "level": record.levelname.lower(), "message": message}
        if record.exc_info:
            words["error"] = self.formatException(record.exc_info)
        return json.dumps(words)


CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonLines}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "recollect.serve": {"level": "INFO"},
        "python_multipart": {"level": "ERROR"},  # which warns of every form that is not one
    },
}
