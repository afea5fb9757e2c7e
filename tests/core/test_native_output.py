"""The guard around native solvers: their lines never reach standard output, ours do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from takeup.core.native_output import native_output_to_stderr


def test_what_native_code_writes_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with native_output_to_stderr():
        os.write(1, b"stray\n")
    os.write(1, b"ours\n")

    assert capfd.readouterr() == ("ours\n", "stray\n")


def test_what_the_c_library_holds_back_does_not_come_out_later(capfd: pytest.CaptureFixture[str]) -> None:
    with native_output_to_stderr():
        ctypes.CDLL(None).printf(b"stray\n")
    os.write(1, b"ours\n")

    assert capfd.readouterr() == ("ours\n", "stray\n")


def test_standard_output_is_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), native_output_to_stderr():
        raise KeyError
    os.write(1, b"ours\n")

    assert capfd.readouterr().out == "ours\n"


def test_guards_may_be_nested(capfd: pytest.CaptureFixture[str]) -> None:
    with native_output_to_stderr():
        with native_output_to_stderr():
            os.write(1, b"inner\n")
        os.write(1, b"outer\n")

    assert capfd.readouterr() == ("", "inner\nouter\n")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_descriptor_is_no_problem(closed: int) -> None:
    program = f"import os; os.close({closed})\nfrom takeup.core.native_output import native_output_to_stderr as guard\n"
    program += "with guard(): pass\nos._exit(7)"

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 7
