"""Answers to samples, kept so that a run goes on where it was ended."""

from __future__ import annotations

import pytest

from farm.errors import FarmError
from farm.store import PredictionStore


def test_answers_are_kept_by_subject_and_sample(tmp_path):
    store = PredictionStore(tmp_path / "answers.sqlite")
    assert store.answers("a") == {}
    store.keep("a", {"1.png": (3, 1), "2.png": ()})
    store.keep("b", {"1.png": (0,)})
    store.keep("a", {"1.png": (2, 1)})
    assert store.answers("a") == {"1.png": (2, 1), "2.png": ()} and store.answers("b") == {
        "1.png": (0,)
    }
    store.forget("a")
    assert store.answers("a") == {} and store.answers("b") == {"1.png": (0,)}


def test_a_name_that_is_no_text_is_kept_once(tmp_path):
    store = PredictionStore(tmp_path / "answers.sqlite")
    store.keep("a", {"\udcff.png": (1,)})
    assert list(store.answers("a").values()) == [(1,)]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "answers.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(FarmError, match="the record of answers cannot be used"):
        PredictionStore(tmp_path / "answers.sqlite").answers("a")
