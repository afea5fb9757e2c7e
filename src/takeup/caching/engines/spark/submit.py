"""Any Spark application under a policy, without touching its code: `spark-submit` with additional settings."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from takeup.caching.engines.spark.counts import SparkCounts
from takeup.caching.engines.spark.session import LISTS, settings, take_setting
from takeup.errors import BadInput, MissingEngine


def run_submit(policy: str, argv: Sequence[str], profile: Path | str | None = None) -> tuple[int, SparkCounts | None]:
    """Run `spark-submit ...` under the policy: returns its exit code, and the counters if it wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        counters_file = Path(folder) / "counters.json"
        command = submit_command(policy, argv, profile, counters_file)
        try:
            code = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise MissingEngine(
                f"cannot run {command[0]!r}: {error.strerror}; give the path of spark-submit"
            ) from error
        text = counters_file.read_text("utf-8") if counters_file.exists() else None
    return code, None if text is None else SparkCounts.from_json(text)


def submit_command(
    policy: str, argv: Sequence[str], profile: Path | str | None = None, counters_file: Path | str | None = None
) -> list[str]:
    """The command with the plug-in's settings behind its first word; jars and plug-ins it names already are kept."""
    if not argv:
        raise BadInput("there is no command to run; give one behind '--', such as '-- spark-submit job.py'")
    values = settings(policy, profile, counters_file)
    words = list(argv[1:])
    for name in LISTS:
        values[name] = ",".join([*take_setting(words, name), values[name]])
    added = [word for name, value in values.items() for word in ("--conf", f"{name}={value}")]
    return [argv[0], *added, *words]
