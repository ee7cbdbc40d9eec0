"""What a resolution is asked: a profile, what is known, and what was found on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.resolve.notes import Notes


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """What the command line read from disk: the tree hash of `path`, and the patches' bytes by name.

    `folder` is the real path of the checkout.
    """

    tree: str | None = None
    folder: str = ""
    patches: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that the steps of a resolution read, and the notes they write.

    `local_gpus` name this machine's GPUs as `local_words` does, for `gpus: local`; `machine` is the CPU that is built
    for.
    """

    profile: Profile
    knowledge: KnowledgeBase
    notes: Notes
    local: LocalSource = LocalSource()
    local_gpus: Sequence[str] = ()
    machine: str = "x86_64"
