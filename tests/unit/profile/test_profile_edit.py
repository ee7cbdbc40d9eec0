"""A change is written into the lines of its fields; comments, order and line ends stay."""

from __future__ import annotations

import pytest

from tfdock.errors import ProfileError
from tfdock.profile import profile as profiles
from tfdock.profile.profile_edit import edited
from tfdock.resolve.profile_changes import as_yaml

HEAD = 'schema: 1\ntensorflow: "2.18.0"  # mine\n'


@pytest.mark.parametrize(
    ("text", "change", "after"),
    [
        ("cuda:   '12.5.1' # old\n", {"cuda": "12.8.0"}, 'cuda:   "12.8.0" # old\n'),
        ("gpus:\n  - rtx5090 # a\n  # b\n\n# c\n", {"gpus": ["h100"]}, "gpus: [h100] # a\n  # b\n\n# c\n"),
        ("gpus:\n- a\n- b\n", {"gpus": ["a"]}, "gpus: [a]\n"),
        ("gpus: [a,\n  b] # two\n", {"gpus": ["a"]}, "gpus: [a] # two\n"),
        ('cuda: "12.5.1"\n# last\n', {"cuda": None}, "# last\n"),
        ('cuda: "12.5.1"', {"python": "3.11"}, 'cuda: "12.5.1"\npython: "3.11"\n'),
        ('cuda: "12.5.1"\r\n', {"xla": False}, 'cuda: "12.5.1"\r\nxla: false\r\n'),
        (
            "resources:\n  memory: 8GiB # all\n  # cores\n  jobs: 2\n",
            {"resources.memory": "16GiB", "resources.jobs": None},
            "resources:\n  memory: 16GiB # all\n  # cores\n",
        ),
        ("resources:\n  jobs: 2\nxla: false\n", {"resources.jobs": None}, "xla: false\n"),
        (
            "resources: {jobs: 2, memory: 8GiB} # a\n",
            {"resources.jobs": 1},
            "resources: {memory: 8GiB, jobs: 1} # a\n",
        ),
        ("", {"resources.jobs": 1}, "resources: {jobs: 1}\n"),
        ("resources:\n  memory: 8GiB\n", {"resources.jobs": 1}, "resources:\n  memory: 8GiB\n  jobs: 1\n"),
    ],
)
def test_only_the_lines_of_the_fields_change(text: str, change: dict[str, object], after: str) -> None:
    profile, _ = profiles.read(HEAD + text, "my.yaml")
    assert edited(HEAD + text, *as_yaml(change, profile)) == HEAD + after
    profiles.read(HEAD + after, "my.yaml")


def test_what_a_parent_says_is_taken_away_with_null() -> None:
    profile, _ = profiles.read("extends: a.yaml\n", "my.yaml", {"a.yaml": HEAD + 'cuda: "12.5.1"\n'})
    assert edited("extends: a.yaml\n", *as_yaml({"cuda": None}, profile)) == "extends: a.yaml\ncuda: null\n"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("{schema: 1, tensorflow: '2.18.0'}", {"xla": False}),
        ("{schema: 1, tensorflow: '2.18.0'}", {"xla": False, "python": "3.11"}),
        ('schema: 1\rcuda: "12.5.1"\rtensorflow: "2.18.0"\r', {"cuda": None}),
    ],
)
def test_a_layout_that_nobody_writes_never_passes_for_a_profile(text: str, change: dict[str, object]) -> None:
    profile, _ = profiles.read(text, "my.yaml")
    with pytest.raises(ProfileError):
        profiles.read(edited(text, *as_yaml(change, profile)), "my.yaml")
