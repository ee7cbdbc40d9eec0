"""The caller's proxies: what containers get of them."""

from __future__ import annotations

import pytest

from tfdock.host.proxies import proxies_for_containers

LOGIN = {"https_proxy": "http://anna:hunter2-canary@proxy.example:3128", "NO_PROXY": "localhost,.example.org"}


def test_containers_get_addresses_and_exceptions_in_the_caller_s_spelling() -> None:
    proxies = proxies_for_containers({**LOGIN, "HTTP_PROXY": "http://other:1", "PATH": "/bin"}, share_loopback=False)
    assert proxies.variables == {**LOGIN, "HTTP_PROXY": "http://other:1"}
    assert proxies.with_login == ("https_proxy",)
    assert "hunter2-canary" in proxies.logins
    assert "hunter2" not in repr(proxies)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:3128", "localhost:3128", "socks5h://[::1]:1080", "http://me:word@127.3.2.1:1/"]
)
def test_a_proxy_on_the_loopback_is_left_out_unless_containers_share_it(address: str) -> None:
    environment = {"all_proxy": address, "no_proxy": "x"}
    apart = proxies_for_containers(environment, share_loopback=False)
    assert (apart.variables, apart.unreachable, apart.with_login) == ({}, ("all_proxy",), ())
    shared = proxies_for_containers(environment, share_loopback=True)
    assert (shared.variables, shared.unreachable) == (environment, ())


def test_a_variable_that_is_empty_or_no_address_is_no_proxy_on_the_loopback() -> None:
    proxies = proxies_for_containers({"http_proxy": "", "https_proxy": "http://[broken"}, share_loopback=False)
    assert proxies.variables == {"https_proxy": "http://[broken"}
    assert proxies.unreachable == ()
