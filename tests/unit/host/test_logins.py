"""Logins in addresses: which address may have one, and output that says none of it."""

from __future__ import annotations

import pytest

from tfdock.host.logins import LoginFilter, logins


@pytest.mark.parametrize(
    "value",
    [
        "",
        "https://pypi.corp/simple",
        "https://pypi.corp:8443/simple/",
        "https://[::1]:3141/root/pypi/+simple/",
        "http://proxy.corp:3128",
        "proxy.corp:3128",
        "https://gitlab.corp/api/v4/projects/123/packages/pypi/simple",
        "https://corp.example/artifactory/api/pypi/pypi-virtual-2024/simple https://packages.example/simple",
        "https://organization.example/Repositories/pypi-py3.11/simple",
    ],
)
def test_an_address_of_words_and_numbers_has_no_login(value: str) -> None:
    assert logins(value) == ()


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("https://me:swordfish@pypi.corp/simple", "swordfish"),
        ("https://swordfish@pypi.corp/simple", "swordfish"),
        ("https://packages.example/simple https://me:sword/fish@pypi.corp/simple", "sword/fish"),
        ("https://me:sword%2Ffish@pypi.corp/simple", "sword/fish"),
        ("https://aZ3kQ9tR7wX1:@pypi.corp/simple", "aZ3kQ9tR7wX1"),
        ("me:swordfish@proxy.corp:3128", "swordfish"),
        ("https://dl.corp/HjKKZJn6dY8xYB3h/org/repo/python/simple/", "HjKKZJn6dY8xYB3h"),
        ("https://pypi.corp/3f2504e0-4f89-11d3-9a0c-0305e82c3301/simple", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
        ("https://pypi.corp/simple?key=swordfish", "swordfish"),
        ("https://pypi.corp/simple#swordfish", "swordfish"),
    ],
)
def test_a_login_or_a_token_is_found_wherever_an_address_has_it(value: str, secret: str) -> None:
    assert secret in logins(value)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_output_has_no_login_however_it_is_cut(size: int) -> None:
    heard: list[bytes] = []
    without = LoginFilter(["me:swordfish", "swordfish", "swordfish2", "fish"], heard.append)
    said = b"Looking in https://me:swordfish@pypi.corp/simple\nswordfish2, sword and fish: swordfis"
    for at in range(0, len(said), size):
        without.feed(said[at : at + size])
    without.close()
    text = b"Looking in https://<login>@pypi.corp/simple\n<login>, sword and fish: swordfis"
    assert b"".join(heard) == text


def test_output_goes_on_at_once_where_nothing_is_to_be_hidden() -> None:
    heard: list[bytes] = []
    LoginFilter([], heard.append).feed(b"half a line")
    assert heard == [b"half a line"]
