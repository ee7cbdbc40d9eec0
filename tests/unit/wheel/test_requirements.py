"""What a wheel asks pip to bring, as packages and versions."""

from __future__ import annotations

import pytest

from tfdock.wheel.requirements import RequiredPackage, wanted


@pytest.mark.parametrize(
    ("line", "oldest", "before", "exact"),
    [
        ("nvidia-cudnn-cu12 (==9.3.0.75)", "9.3.0.75", None, True),
        ("Nvidia_Cudnn.cu12==9.3.0.75", "9.3.0.75", None, True),
        ("nvidia-cudnn-cu12<10.0,>=9.3.0.75", "9.3.0.75", "10.0", False),
        ("nvidia-cudnn-cu12>=9.3,>=9.10,<11,<10", "9.10", "10", False),
        ("nvidia-cudnn-cu12", "", None, False),
        ("nvidia-cudnn-cu12~=9.3.0", "9.3.0", "9.4", False),
        ("nvidia-cudnn-cu12==9.3.*", "9.3", "9.4", False),
        ("nvidia-cudnn-cu12<=9.10,!=9.8", "", "9.10.1", False),
        ("nvidia-cudnn-cu12===anything", "", None, False),
        pytest.param(f"nvidia-cudnn-cu12>={'1' * 5000}", "", None, False, id="thousands of digits"),
        ("nvidia-cudnn-cu12==1!9.3.post1", "9.3", None, True),
    ],
)
def test_a_requirement_says_what_pip_takes(line: str, oldest: str, before: str | None, exact: bool) -> None:
    assert wanted([line]) == (
        RequiredPackage(package="nvidia-cudnn-cu12", oldest=oldest, before=before, exact=exact),
    )


def test_requirements_of_an_extra_of_another_system_or_none_at_all_are_left_out() -> None:
    lines = [
        'a==1; extra == "and-cuda"',
        'b==1; extra == "other"',
        'c==1; sys_platform == "darwin"',
        'd==1; platform_machine == "aarch64"',
        'e==1; python_version < "3.9"',
        "%%% no requirement",
        "f==1",
    ]
    assert [one.package for one in wanted(lines, ["and-cuda"])] == ["a", "f"]
    assert [one.package for one in wanted(lines, machine="aarch64", python="3.8")] == ["d", "e", "f"]
