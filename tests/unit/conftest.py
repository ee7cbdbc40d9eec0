"""Fixtures of the unit tests: shipped knowledge, made-up knowledge, a cache folder of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from document_schemas import check_printed
from typer.testing import CliRunner

from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase

from .command_trees import share_trees
from .desk import MADE_UP_TABLES, MADE_UP_TEMPLATES, Desk, knowledge_of

share_trees(pytest.MonkeyPatch())  # at once: some modules make trees when they are imported


@pytest.fixture(scope="session")
def desk() -> Desk:
    """The shipped knowledge and templates."""
    return Desk(knowledge=loader.knowledge(), templates=loader.templates())


@pytest.fixture(scope="session")
def made_up() -> Desk:
    """Knowledge of releases, toolkits, GPUs and an accelerator that do not exist."""
    return Desk(knowledge=knowledge_of(MADE_UP_TABLES), templates={**loader.templates(), **MADE_UP_TEMPLATES})


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands that are run here keep nothing in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def shipped_tables() -> Iterator[None]:
    """The shipped tables are read once, whatever cache folder a test has."""
    read = loader._shared_knowledge
    shipped = read((), None)

    def shared(folders: tuple[loader._Folder, ...], cache: Path | None) -> KnowledgeBase:
        return read(folders, cache) if folders else shipped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_shared_knowledge", shared)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_power_cuts() -> Iterator[None]:
    """What is written here need not outlast the machine: a disk takes a while for each file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def documents() -> Iterator[None]:
    """Every document that a command prints here is held against its schema."""
    invoke = CliRunner.invoke

    def checked(self: CliRunner, *args: Any, **kwargs: Any) -> Any:
        result = invoke(self, *args, **kwargs)
        list(check_printed(result.stdout))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CliRunner, "invoke", checked)
        yield
