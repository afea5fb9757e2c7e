"""What a server writes to its log: lines for people, or one JSON object for each. Headers, so keys, are never in it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class JsonLines(logging.Formatter):
    """One object a line: time, level, what, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_config(as_json: bool) -> dict[str, Any]:
    """The configuration of the standard library's logging: everything to stderr."""
    plain = {"format": "%(asctime)s %(levelname)s %(message)s"}
    lines = {"()": "takeup.serving.server.logs.JsonLines"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": lines if as_json else plain},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": "INFO", "propagate": False} for name in ("uvicorn", "takeup")
        },
    }
