"""Rows whose keys are equal but for rounding may come in either order; others may not."""

from __future__ import annotations

import numpy as np

from farm.stats import compare_outputs_with_reference, has_tied_numbers, has_tied_rows
from farm.types import OutputErrorLimits

LIMITS = OutputErrorLimits(max_abs=1e-4)
BOXES = np.array([[0, 0, 10, 10], [5, 5, 9, 9], [20, 20, 30, 30], [1, 2, 3, 4]], np.float32)
SCORES = np.array([0.9, 0.5, 0.5, 0.2], np.float32)
LABELS = np.array([3, 1, 2, 1], np.int64)
SWAPPED = [0, 2, 1, 3]


def is_right(ours, theirs):
    return compare_outputs_with_reference(ours, theirs, LIMITS).right


def table(boxes=BOXES, scores=SCORES, labels=LABELS):
    return np.column_stack([boxes, scores, labels]).astype(np.float32)


def test_rows_of_equal_scores_are_right_in_either_order():
    assert is_right([table()[SWAPPED]], [table()])


def test_rows_whose_scores_differ_by_rounding_are_right_in_either_order():
    theirs = table()
    theirs[1, 4] += 3e-5
    ours = table()[SWAPPED]
    ours[1, 4] += 3e-5
    assert is_right([ours], [theirs])


def test_rows_whose_scores_differ_by_more_are_wrong_in_another_order():
    theirs = table()
    theirs[1, 4] += 0.01
    assert not is_right([theirs[SWAPPED]], [theirs])


def test_boxes_scores_and_labels_of_their_own_are_reordered_together():
    theirs = [BOXES, SCORES, LABELS]
    assert is_right([one[SWAPPED] for one in theirs], theirs)


def test_boxes_in_another_order_than_their_labels_are_wrong():
    assert not is_right([BOXES[SWAPPED], SCORES, LABELS], [BOXES, SCORES, LABELS])


def test_a_row_that_the_reference_lacks_is_wrong():
    ours = table()
    ours[1, :4] += 1
    assert not is_right([ours[SWAPPED]], [table()])


def test_a_sorted_label_does_not_make_rows_of_different_scores_tied():
    scores = np.array([0.9, 0.6, 0.5, 0.2], np.float32)
    theirs = [np.array([2, 1, 1, 0], np.float32), BOXES, scores]
    assert not is_right([one[SWAPPED] for one in theirs], theirs)
    assert is_right(
        [one[SWAPPED] for one in (theirs[0], BOXES, SCORES)], [theirs[0], BOXES, SCORES]
    )


def test_rows_that_no_column_sorts_are_wrong_in_another_order():
    theirs = table(scores=np.array([0.2, 0.5, 0.5, 0.9], np.float32))
    assert not is_right([theirs[SWAPPED]], [theirs])


def test_rows_of_one_score_throughout_have_no_key():
    theirs = table(scores=np.full(4, 0.5, np.float32))[:, :5]
    theirs[:, :4] = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert not is_right([theirs[SWAPPED]], [theirs])


def test_rows_of_each_image_of_a_batch_are_reordered_for_themselves():
    theirs = np.stack([table(), table(boxes=BOXES[::-1])])
    ours = theirs.copy()
    ours[1] = ours[1][SWAPPED]
    assert is_right([ours], [theirs])
    ours[0, 3], ours[1, 3] = theirs[1, 3], theirs[0, 3]
    assert not is_right([ours], [theirs])


def test_integers_beside_tied_rows_must_be_equal():
    theirs = [BOXES, SCORES, LABELS]
    ours = [one[SWAPPED] for one in theirs]
    ours[2] = ours[2] + 1
    assert not is_right(ours, theirs)


def test_rows_of_equal_scores_are_tied_and_others_are_not():
    assert has_tied_rows([BOXES, SCORES, LABELS], 1e-4)
    assert has_tied_rows([table()[None]], 1e-4)
    assert not has_tied_rows([np.array([0.9, 0.5, 0.4, 0.2], np.float32), LABELS], 1e-4)


def test_rows_of_padding_are_not_tied():
    assert not has_tied_rows([np.array([0.9, 0.5, 0, 0, 0], np.float32)], 1e-4)
    assert not has_tied_rows([np.zeros((0, 4), np.float32)], 1e-4)


def test_numbers_are_tied_if_neighbours_differ_by_rounding_only():
    assert has_tied_numbers(np.array([[3.0, 2.0, 2.0], [3.0, 2.0, 1.0]], np.float32))
    assert has_tied_numbers(np.array([1.0, 1.0 - 6e-8], np.float32))
    assert not has_tied_numbers(np.array([[3.0, 2.0], [3.0, 2.9]], np.float32))
    assert not has_tied_numbers(np.array([1.0, 0.9999], np.float32))
    others = np.float32(1), np.zeros((2, 1), "float32"), np.array([1, 1]), np.zeros((0, 4), "f")
    assert not any(has_tied_numbers(np.asarray(one)) for one in others)
