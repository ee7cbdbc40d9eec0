"""The caller's proxies (`https_proxy` and the like), as variables of containers that have a network."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdock.host.logins import logins

_LOWER = ("http_proxy", "https_proxy", "all_proxy")
#: Variables with the address of a proxy. The address may have a login. Programs read the upper-case variable, the
#: lower-case variable, or both.
ADDRESSES = (*_LOWER, *map(str.upper, _LOWER))
EXCEPTIONS = ("no_proxy", "NO_PROXY")  #: Variables that name the hosts to reach without a proxy.


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """The proxies that a container gets, and the proxies that a container cannot reach."""

    # `repr=False`, so that no printed value shows a login.
    variables: Mapping[str, str] = field(repr=False)  #: Variables for the environment of a container.
    logins: tuple[str, ...] = field(repr=False)  #: Texts in the addresses that may be secret: no output shows them.
    with_login: tuple[str, ...]  #: Names of the variables with a login.
    #: Names of the variables that are left out: the proxy is on this machine's loopback, not a container's.
    unreachable: tuple[str, ...]


def proxies_for_containers(environment: Mapping[str, str], *, share_loopback: bool) -> Proxies:
    """Return the proxies in an environment. `share_loopback`: containers share the network of this machine."""
    addresses = {name: environment[name] for name in ADDRESSES if environment.get(name)}
    unreachable = () if share_loopback else tuple(name for name in addresses if _is_loopback(addresses[name]))
    reachable = {name: address for name, address in addresses.items() if name not in unreachable}
    exceptions = {name: environment[name] for name in EXCEPTIONS if environment.get(name)}
    secrets = {name: logins(address) for name, address in reachable.items()}
    return Proxies(
        variables={**reachable, **exceptions} if reachable else {},
        logins=tuple(dict.fromkeys(secret for found in secrets.values() for secret in found)),
        with_login=tuple(name for name, found in secrets.items() if found),
        unreachable=unreachable,
    )


def _is_loopback(address: str) -> bool:
    """Return whether a proxy's address is on the loopback. Most programs accept an address without a scheme too."""
    try:
        host = urllib.parse.urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
