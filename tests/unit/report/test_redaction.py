"""What is replaced in a report, of what is known, and what stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.report.redaction import ADDRESS_LOGIN, KnownTexts, Redactor

from ..backtracking import most_ways
from ..steps import steps

CANARY = "c4nary/S3cret+42"
KNOWN = KnownTexts(
    secrets=frozenset({CANARY, f"{CANARY} and more", "docker", "shrt"}),
    users=frozenset({"annacanary", "Anna Canary", "root", "li"}),
    hosts=frozenset({"canaryhost", "localhost", ""}),
    places={"/srv/annacanary": "<home>", "/srv/annacanary/cache": "<cache>"},
)


def redacted(text: str, known: KnownTexts = KNOWN) -> str:
    return Redactor(known).text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"x{CANARY}y {CANARY}", "x<secret>y <secret>"),
        (f"{CANARY} and more", "<secret>"),
        ("by annacanary, /tmp/bazel_annacanary/x", "by <user>, /tmp/bazel_<user>/x"),
        ("ANNACANARY and Anna Canary", "<user> and <user>"),
        ("on CanaryHost.example", "on <host>.example"),
        ("/srv/annacanary/cache/disk /srv/annacanary/x", "<cache>/disk <home>/x"),
        # Parts of words, names of nobody, and texts that are too short to be told from words.
        ("annacanaryx canaryhosts", "annacanaryx canaryhosts"),
        ("root at localhost, li, docker, shrt", "root at localhost, li, docker, shrt"),
        ("annacanarie\u017f is no name, ANNACANARY is", "annacanarie\u017f is no name, <user> is"),
    ],
)
def test_what_is_known_goes(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://anna:hunter2canary@example.org/x", "https://<login>@example.org/x"),
        ("git clone https://hunter2canary@example.org/x", "git clone https://<login>@example.org/x"),
        ("http_proxy=http://anna:hunter2/?#canary@example.org:3128", "http_proxy=http://<login>@example.org:3128"),
        ("https://anna:hunter2@canary@example.org/x", "https://<login>@example.org/x"),
        (f"https://anna:{CANARY}@example.org/x", "https://<login>@example.org/x"),
    ],
)
def test_a_login_in_an_address_goes_whoever_has_it(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "docker://localhost:5000/x@sha256:0123 http://[::1]/x https://registry.example:443/@scope/x http://x.org/?a=b",
        "git@github.com:tensorflow/tensorflow.git image ghcr.io/me/wheels@sha256:0123 rules_cc@0.0.9",
        "MY_TOKEN=swordfish Authorization: Bearer swordfish",
        "",
    ],
)
def test_what_nobody_knows_to_be_a_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert redacted(text, KnownTexts()) == text


def test_documents_go_through_with_their_keys() -> None:
    document = {"a": [f"x {CANARY}", 5, None], CANARY: {"b": "by annacanary"}, "PASSWORD": "swordfish"}
    shown = {"a": ["x <secret>", 5, None], "<secret>": {"b": "by <user>"}, "PASSWORD": "swordfish"}
    assert Redactor(KNOWN).document(document) == shown


def test_it_is_counted_by_what_it_was() -> None:
    redactor = Redactor(KNOWN)
    redactor.text(f"annacanary annacanary {CANARY} https://a:b@example.org /srv/annacanary/x")
    assert redactor.counts == {"user": 2, "secret": 1, "login": 1, "home": 1}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=3))
def test_whatever_a_secret_is_made_of_it_goes(secret: str) -> None:
    secret = f"c4{secret}"
    redactor = Redactor(KnownTexts(secrets=frozenset({secret}), users=frozenset({secret})))
    assert redactor.text(f"x{secret}y {secret}") == "x<secret>y <secret>"


@given(st.text(), st.text())
def test_no_text_fails_by_the_case_of_its_letters(name: str, text: str) -> None:
    Redactor(KnownTexts(users=frozenset({name}))).text(f"{name.upper()} {name.lower()} {text}")


def test_a_longer_text_gives_no_more_ways_to_search_it() -> None:
    assert most_ways(ADDRESS_LOGIN, 10**5) == most_ways(ADDRESS_LOGIN, 10**6)


@pytest.mark.parametrize("evil", ["a", "x://", "x://a:", "a@", "x://<secret>", CANARY, "annacanary/"])
def test_twice_the_text_takes_twice_the_steps(evil: str) -> None:
    once, twice = evil * 300, evil * 600
    assert steps(lambda: redacted(twice)) < 2.1 * steps(lambda: redacted(once))
