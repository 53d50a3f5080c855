"""The quick tier lists files that exist, and its tests cannot import TVM."""

from __future__ import annotations

import subprocess
import sys

from quick_tier import PATHS, TESTS, is_quick


def test_each_path_of_the_quick_tier_is_a_file_of_tests() -> None:
    assert [path for path in PATHS if not (TESTS / path).is_file()] == []
    assert len(set(PATHS)) == len(PATHS)


def test_a_file_is_chosen_with_its_folders_and_no_file_beside_it() -> None:
    assert all(
        is_quick(parent) for parent in (TESTS, TESTS / "config", TESTS / "config" / "test_fleet.py")
    )
    assert not is_quick(TESTS / "cluster") and not is_quick(TESTS / "project" / "test_wheel.py")


def test_all_tests_of_the_quick_tier_are_found_without_tvm() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--quick", "--collect-only"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert [path for path in PATHS if f"tests/{path}::" not in done.stdout] == []


def test_an_import_of_tvm_fails_in_the_quick_tier() -> None:
    code = "import quick_tier; quick_tier.refuse_tvm(); import tvm"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS / "helpers", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "TvmRefused: a test of the quick tier imports tvm" in done.stderr
