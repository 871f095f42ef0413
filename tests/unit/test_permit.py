"""A permit allows one send, by whoever earned it."""

from __future__ import annotations

import copy
import pickle

import pytest

from airflow_provider_dpone.publication.permit import Permit


def permit() -> Permit:
    return Permit(token="t", epoch=1, write_id="w")


def test_it_is_used_once() -> None:
    once = permit()
    once.use("t")
    assert once.used
    with pytest.raises(RuntimeError, match="one send"):
        once.use("t")


def test_it_is_for_its_own_statement_only() -> None:
    mine = permit()
    with pytest.raises(RuntimeError, match="another statement"):
        mine.use("other")
    assert not mine.used


def test_it_cannot_be_copied_or_pickled() -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(permit())
