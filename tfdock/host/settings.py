"""Settings of this machine and its user. Settings never come from a profile or a repository.

Highest priority first: flag, `TFDOCK_*` variable, `tfdock/config.yaml` in the user's configuration folder, default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import platformdirs

from tfdock.errors import Problem, ProfileError
from tfdock.host.files import read_text
from tfdock.profile import endpoint, yaml_nodes
from tfdock.profile.units import MEMORY, parse_bytes
from tfdock.types import Endpoint, ImageRef, Machine, Remote


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One machine's settings. `mirrors` maps a registry to its replacement."""

    wheelhouse: Path = Path("wheelhouse")
    cache_dir: Path = field(default_factory=lambda: Path(platformdirs.user_cache_dir("tfdock")))
    state_dir: Path = field(default_factory=lambda: Path(platformdirs.user_state_dir("tfdock")))
    knowledge: tuple[Path, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    #: The address of a mirror of source archives. It is tried first, and has `https://x/y` as `<mirror>/x/y`.
    archives: str | None = None
    #: Repositories (`ghcr.io/me/wheels`) of wheel images. They are searched in this order before a build.
    registries: tuple[str, ...] = ()
    #: Registries on other machines that are used over plain HTTP: others can read and change the traffic.
    plain_http: tuple[str, ...] = ()
    #: Folders outside a profile's project: profiles and matrices may name their files.
    allow_paths: tuple[Path, ...] = ()
    #: Further remote caches and executors that profiles may name, besides the endpoints of these settings.
    allow_endpoints: tuple[str, ...] = ()
    #: The engine's network for image builds and the fetch phase; None is the engine's default.
    network: str | None = None
    #: The most memory in bytes for all builds of a command together; None means the whole machine. `cpus`
    #: limits the cores in the same way.
    memory: int | None = None
    cpus: int | None = None
    #: When a run's output base is kept: `never`, or when the build `failed`.
    keep_output: str = "never"
    remote_cache: str | None = None
    remote_executor: str | None = None
    remote_instance: str | None = None
    remote_jobs: int | None = None
    remote_upload: bool = True
    remote_credential_helper: str | None = None  #: A program that follows Bazel's credential helper protocol.

    @property
    def remote(self) -> Remote:
        """The remote cache and executor of this machine."""
        return Remote(
            cache=endpoint.parse(self.remote_cache) if self.remote_cache else None,
            executor=endpoint.parse(self.remote_executor) if self.remote_executor else None,
            instance=self.remote_instance or "",
            upload=self.remote_upload,
            jobs=self.remote_jobs,
        )

    def allows(self, asked: Endpoint) -> bool:
        """Return whether a profile may name this remote cache or executor."""
        # A profile may also name the endpoints that this machine uses itself.
        own = (self.remote.cache, self.remote.executor)
        # The list also holds git servers and registries, which are no endpoints.
        listed = (endpoint.parse(address) for address in self.allow_endpoints if endpoint.is_address(address))
        return asked in own or asked in listed

    def allows_server(self, address: str) -> bool:
        """Return whether this machine may connect to a git server or a registry that a profile names."""
        return endpoint.server(address) in map(endpoint.server, self.allow_endpoints)

    def allows_registry(self, registry: str) -> bool:
        """Return whether a registry (`ghcr.io`) is allowed: Docker Hub, and any in these settings."""
        named = {"docker.io", *self.mirrors, *self.plain_http}
        named |= {ImageRef.parse(name).registry for name in self.registries}
        return registry in named or any(self.allows_server(f"{scheme}://{registry}") for scheme in ("https", "http"))

    @property
    def repositories(self) -> tuple[ImageRef, ...]:
        """The registries that are searched for wheel images: `registries`, or their mirrors, without duplicates."""
        return tuple(dict.fromkeys(self.mirrored(ImageRef.parse(name)) for name in self.registries))

    def granted(self, machine: Machine) -> Machine:
        """Return the part of a machine that builds may use."""
        memory = min(machine.memory, self.memory or machine.memory)
        return replace(machine, cpus=min(machine.cpus, self.cpus or machine.cpus), memory=memory)

    def mirrored(self, reference: ImageRef) -> ImageRef:
        """Return the reference to fetch an image from. The name in plans and fingerprints does not change."""
        registry = self.mirrors.get(reference.registry)
        return reference.at(registry) if registry else reference


_PREFIX = "TFDOCK_"
#: Setting -> its variable.
_VARIABLES = {item.name: f"{_PREFIX}{item.name.upper()}" for item in fields(Settings)}
_VARIABLES["mirrors"] = "TFDOCK_REGISTRY_MIRROR"

#: From this similarity on (1 is equal), a name counts as misspelt. Pipelines use similar names: `TFDOCK_REGISTRY`.
_ALIKE = 0.8


def misspelt(environment: Mapping[str, str]) -> list[Problem]:
    """Return a warning for each unknown variable whose name is nearly that of a setting's variable."""
    known = {*_VARIABLES.values(), "TFDOCK_REMOTE_HEADER"}
    meant = {name.removeprefix(_PREFIX): name for name in known}
    # A user who knows the name in the settings file may write `TFDOCK_MIRRORS`.
    meant |= {setting.upper(): variable for setting, variable in _VARIABLES.items()}
    problems = []
    for name in sorted(name for name in environment if name.startswith(_PREFIX) and name not in known):
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), meant, n=1, cutoff=_ALIKE)
        if near:
            message, fix = f"the variable `{name}` belongs to no setting", f"did you mean `{meant[near[0]]}`?"
            problems.append(Problem("settings-unknown-key", message, fix, severity="warning"))
    return problems


def configuration_file() -> Path:
    """Return the path of the user's configuration file. The file need not exist."""
    return Path(platformdirs.user_config_dir("tfdock")) / "config.yaml"


def load(flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from flags (None: not given), the environment and the configuration file."""
    environment = os.environ if environment is None else environment
    values: dict[str, object] = dict(_from_file(configuration_file()))
    for name, variable in _VARIABLES.items():
        text = environment.get(variable)
        # An empty variable counts as none: pipelines set variables without a value.
        if text:
            values[name] = _parse_text(name, text, variable)
    values |= {name: value for name, value in flags.items() if value is not None and value != ()}
    for name, flag in (("registries", "--registry"), ("allow_endpoints", "--allow-endpoint")):
        if flags.get(name):
            values[name] = _parse_list(name, flags[name], flag)  # type: ignore[arg-type]
    return Settings(**values)  # type: ignore[arg-type]


def _from_file(file: Path) -> dict[str, object]:
    # A broken link is an error to report; it is not the same as a missing file.
    if not os.path.lexists(file):
        return {}
    node = yaml_nodes.parse(read_text(file), str(file))
    known = {item.name for item in fields(Settings)}
    unknown = [key for key in node.entries if key not in known]
    if unknown or node.kind != "map":
        line, column = node.keys.get(unknown[0], (1, 1)) if unknown else (1, 1)
        raise ProfileError.of(
            "settings-unknown-key",
            f"unknown setting `{unknown[0]}`" if unknown else "settings are `name: value` lines",
            f"{_near(unknown[0], known) if unknown else ''}known: {', '.join(sorted(known))}",
            file=str(file),
            line=line,
            column=column,
        )
    return {key: _parse_node(key, child, str(file)) for key, child in node.entries.items()}


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean `{near[0]}`? " if near else ""


def _parse_node(name: str, node: yaml_nodes.Node, file: str) -> object:
    if name == "mirrors" and node.kind == "map":
        return {registry: child.raw for registry, child in node.entries.items()}
    if name in (*_FOLDERS, *_NAMES) and node.kind == "list":
        return _parse_list(name, [item.raw for item in node.items], file)
    if node.kind in ("map", "list"):
        message = f"`{name}` cannot be a {node.kind}"
        raise ProfileError(node.problem(file, "settings-bad-value", message, f"write `{name}: value`"))
    return _parse_text(name, node.raw, file)


def _parse_text(name: str, text: str, where: str) -> object:
    if name in ("wheelhouse", "cache_dir", "state_dir"):
        return Path(text).expanduser()
    if name in _FOLDERS:
        return _parse_list(name, filter(None, text.split(os.pathsep)), where)
    if name in _NAMES:
        return _parse_list(name, filter(None, map(str.strip, text.split(","))), where)
    if name == "mirrors":
        pairs = [part.partition("=") for part in text.split(",") if part]
        if not all(registry and mirror for registry, _, mirror in pairs):
            fix = "write `docker.io=registry.example:5000`, with commas between several mirrors"
            raise _bad_value(f"`{text}` is not a list of mirrors", fix, where)
        return {registry: mirror for registry, _, mirror in pairs}
    if name == "keep_output" and text not in _KEEP_OUTPUT:
        message, fix = f"`keep_output` cannot be `{yaml_nodes.shown(text)}`", f"known: {', '.join(_KEEP_OUTPUT)}"
        raise _bad_value(message, fix, where)
    return _parse_form(name, text, where) if name in _FORMS else text


def _bad_value(message: str, fix: str, where: str) -> ProfileError:
    return ProfileError.of("settings-bad-value", message, fix, file=where)


def _parse_list(name: str, values: Iterable[str], where: str) -> tuple[Path | str, ...]:
    """Return the values of a setting that is a list of folders or names, without duplicates."""
    if name in _FOLDERS:
        return tuple(Path(value).expanduser() for value in values)
    unique = tuple(dict.fromkeys(values))
    for value in unique:
        _NAMES[name](value, where)
    return unique


def _check_repository(name: str, where: str) -> None:
    """Refuse a name that is not a repository. A name with a tag is a single image, which cannot be searched."""
    try:
        image = ImageRef.parse(name)
    except ValueError:
        image = None
    if image is None or image.tag or image.digest:
        fix = "write `host/name`, such as `ghcr.io/me/wheels`: no `https://`, no tag, no capital letters"
        raise _bad_value(f"`{yaml_nodes.shown(name)}` is not a repository of a registry", fix, where)


def _check_host(name: str, where: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?", name):
        fix = "write `registry.lan:5000`: no `http://`, no path"
        raise _bad_value(f"`{yaml_nodes.shown(name)}` is no registry", fix, where)


def _check_endpoint(address: str, where: str) -> None:
    _parse_form("allow_endpoints", address, where)


#: Settings that are lists of names, and the function that checks a name.
_NAMES = {"registries": _check_repository, "plain_http": _check_host, "allow_endpoints": _check_endpoint}
_FOLDERS = ("knowledge", "allow_paths")  #: Lists of folders.
_KEEP_OUTPUT = ("never", "failed")


def plain_http(registry: str) -> bool:
    """Return whether this machine's settings allow plain HTTP for a registry (`registry.lan:5000`)."""
    return registry in load({}).plain_http


#: For a setting: the expected form of its text, an example, and the function that converts the text.
_FORMS: Mapping[str, tuple[str, str, Callable[[str], object]]] = {
    "archives": (
        r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[A-Za-z0-9._~/-]*)?",
        "https://mirror.example/archives",
        lambda text: text.rstrip("/"),
    ),
    "memory": (MEMORY, "24GiB", parse_bytes),
    "cpus": (r"[1-9]\d{0,3}", "8", int),
    "remote_cache": (endpoint.CACHE, "https://cache.example:8443", str),
    "remote_executor": (endpoint.EXECUTOR, "grpcs://executor.example:443", str),
    "allow_endpoints": (endpoint.SERVER, "grpcs://cache.example:443", str),
    "remote_instance": (r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", "main", str),
    "remote_jobs": (r"[1-9]\d{0,3}", "200", int),
    "remote_upload": (r"true|false", "false", "true".__eq__),
}
_ADDRESSES = ("remote_cache", "remote_executor")


def _parse_form(name: str, text: str, where: str) -> object:
    expression, example, value_of = _FORMS[name]
    if endpoint.has_login(text):
        fix = "remove the part before the `@`; credentials come from TFDOCK_REMOTE_HEADER or a helper"
        if name == "archives":
            fix = "give a mirror that needs no login: logs show the address"
        raise _bad_value(f"`{name}` contains a user or a password", fix, where)
    # Without ASCII, `\d` takes the digits of every script.
    if not re.fullmatch(expression, text, re.ASCII) or (name in _ADDRESSES and not endpoint.is_address(text)):
        raise _bad_value(f"`{name}` cannot be `{yaml_nodes.shown(text)}`", f"write it like `{example}`", where)
    return value_of(text)
