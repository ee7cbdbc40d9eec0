"""Translate the error messages of container engines into tfdock's errors. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tfdock.errors import BuildFailed, DiskFull, EngineError, NetworkError, Problem, TfdockError
from tfdock.types import ImageRef

#: Docker's terms and commands, each with podman's equivalent. Sources: containers-registries.conf(5),
#: podman-info(1), and the Container Device Interface in the manual of NVIDIA's container toolkit.
_PODMAN_WORDS = (
    ("`insecure-registries` of its daemon.json", "a `[[registry]]` with `insecure = true` in registries.conf"),
    ("(`docker info` calls it Docker Root Dir)", "(`podman info` calls it graphRoot)"),
    ("`systemctl status docker`", "`systemctl status podman.socket`, with `--user` for your own"),
    (
        "`sudo systemctl restart docker`",
        "`sudo systemctl restart podman`, with `--user` and without sudo for your own",
    ),
    ("`journalctl -u docker`", "`journalctl -u podman`, with `--user` for your own"),
    ("`docker ", "`podman "),
    ("of its daemon.json", "of its containers.conf"),
    ("--gpus all", "--device nvidia.com/gpu=all"),
)


def own_words(text: str, program: str) -> str:
    """Return a text about Docker, with the commands of the engine's own program (`docker` or `podman`)."""
    if program == "podman":
        for word, podman in _PODMAN_WORDS:
            text = text.replace(word, podman)
    return text


@dataclass(frozen=True, slots=True)
class _Meaning:
    """An engine's error text and its problem; the message may use `{what}`, `{where}` and groups of `words`."""

    words: re.Pattern[str]
    error: type[TfdockError]
    code: str
    message: str
    fix: str

    def problem(self, match: re.Match[str], program: str, **names: str) -> TfdockError:
        fields = {**names, **{key: value or "" for key, value in match.groupdict().items()}}
        message = f"{self.message.format(**fields)} (the engine says: {match.string.strip()})"
        return self.error(Problem(self.code, message, own_words(self.fix.format(**fields), program)))


def _means(words: str, error: type[TfdockError], code: str, message: str, fix: str) -> _Meaning:
    return _Meaning(re.compile(words, re.IGNORECASE), error, code, message, fix)


_DISK = _means(
    r"no space left on device|disk quota exceeded",
    DiskFull,
    "disk-full",
    "the engine's disk is full ({what})",
    "free disk space in the engine's data folder (`docker info` calls it Docker Root Dir): "
    "`docker system df` shows its use, `docker system prune` removes unused data",
)

_USER_NAMESPACE = _means(
    r"cannot share the host's network namespace when user namespaces are enabled",
    EngineError,
    "engine-network-impossible",
    "the engine uses user namespaces (`userns-remap`), so it does not allow the network `host` ({what})",
    "use another network of the engine (`TFDOCK_NETWORK`, or `network` in the settings)",
)

_DOCKERFILE = _means(
    r"dockerfile parse error|Cannot locate specified Dockerfile|the Dockerfile .*cannot be empty"
    r"|requires BuildKit|unknown instruction|failed to parse"
    # podman's text
    r"|stat \S+/libpod_builder\d+/build/\S+: no such file or directory",
    BuildFailed,
    "dockerfile-refused",
    "the engine does not accept the Dockerfile",
    "the classic builder supports neither `RUN --mount` nor heredocs; with another builder, check the line that it "
    "names",
)

# The HTTP status does not help: 429, 503 and a registry that is down all arrive as 500 with the registry's words.
_REGISTRY = (
    # The engine's disk may fill while it fetches. Its text is then part of the registry's message.
    _DISK,
    _means(
        r"toomanyrequests|too many requests|rate limit|\b429\b",
        NetworkError,
        "registry-rate-limited",
        "{where} limits requests from this machine, and refuses {what} for now",
        "wait, log in (`docker login`) for a higher limit, or set a registry mirror",
    ),
    _means(
        r"(layer|manifest|image) verification failed|does not match.*digest|unexpected commit digest",
        NetworkError,
        "registry-damaged-content",
        "{where} sends damaged content for {what}",
        "a retry would fetch the same bytes: report this to the registry's operator, or use another mirror",
    ),
    _means(
        r"no matching manifest for (?P<platform>\S+)",
        NetworkError,
        "image-not-found",
        "{what} exists in {where}, but not for {platform}",
        "choose an image for this machine's architecture",
    ),
    # This must come before "denied": for a missing repository, Docker Hub's message has both texts.
    _means(
        r"manifest unknown|name unknown|repository (does not exist|name not known)|not found|HTTP 404 response",
        NetworkError,
        "image-not-found",
        "{where} has no image {what}, or you have no permission to see it",
        "check the name and the tag; for a private image, log in with `docker login`",
    ),
    _means(
        r"denied|unauthorized|no basic auth credentials|authentication required|forbidden|HTTP 40[13] response",
        NetworkError,
        "registry-denied",
        "{where} refuses to serve {what}",
        "log in with `docker login`, as a user with permission to read the image",
    ),
    # This must come before the failed connections: their text (`tls:`) is in these lines too.
    _means(
        r"server gave HTTP response to HTTPS client|x509|certificate",
        NetworkError,
        "registry-unreachable",
        "the engine does not trust {where}, so {what} cannot be fetched",
        "give the engine the registry's certificate, or add the registry to `insecure-registries` of its daemon.json",
    ),
    _means(
        r"dial tcp|no such host|connection re(fused|set)|timeout|timed out|network is unreachable|no route to host"
        r"|unexpected (http )?status|error parsing HTTP \d+|\b50[0-9]\b|\bEOF\b|proxyconnect|request canceled"
        r"|context deadline exceeded|bad gateway|service unavailable|\btls:",
        NetworkError,
        "registry-unreachable",
        "{where} cannot be reached for {what}",
        "check the engine's network (the engine fetches, not tfdock) and its proxy settings, or set a registry "
        "mirror",
    ),
)

# A registry's answers to users without write permission.
_PUSH = (
    # This must come first: with this text the engine itself reports a missing image.
    _means(
        # The last words are podman's.
        r"No such image|does not exist locally|tag does not exist|image not known",
        EngineError,
        "image-missing",
        "the engine does not have the image {what}",
        "build or pull the image first",
    ),
    _means(
        r"denied|unauthorized|no basic auth credentials|authentication required|forbidden|HTTP 40[13] response",
        NetworkError,
        "registry-denied",
        "{where} does not accept {what}",
        "log in with `docker login`, as a user with permission to push there",
    ),
    *_REGISTRY,
)

_REFUSALS = (
    _DISK,
    _USER_NAMESPACE,
    _means(
        # Docker's words, then those of podman's runtimes, crun and runc.
        r"(NanoCPUs|CPU cfs quota|memory limit).*kernel does not support"
        r"|cgroup controller `\w+` is not available"
        r"|(openat2?|open|opening file) .*(memory\.max|cpu\.max).*(no such file|permission denied)",
        EngineError,
        "engine-limits-missing",
        "the engine cannot limit the resources of a container, so it refuses to {what}",
        "delegate control groups to the engine's user: https://rootlesscontaine.rs/getting-started/common/cgroup2/",
    ),
    _means(
        r"docker-init.*(not found|no such file)|unable to find.*docker-init",
        EngineError,
        "docker-init-missing",
        "the engine cannot find `docker-init`, which forwards signals to the build",
        "install `tini` on the engine's machine (Debian's package docker.io does not always install it)",
    ),
    _means(
        r"could not select device driver .*gpu",
        EngineError,
        "gpu-runtime-missing",
        "the engine has no container runtime for GPUs",
        "install the NVIDIA container toolkit on the engine's machine",
    ),
    _means(
        # The first words are Docker's, the second podman's.
        r"failed to mount local volume: (?P<why>.*)|mounting volume \S+ for container \S+: (?P<other>.*)",
        EngineError,
        "volume-mount-refused",
        "the engine cannot mount a volume: {why}{other}",
        "see the engine's log; the folders of the volume must be on a local disk of the engine's machine",
    ),
    _means(
        # The first words are Docker's, the second podman's.
        r"bind source path does not exist: (?P<path>.*)|statfs (?P<other>\S+): no such file or directory",
        EngineError,
        "mount-source-missing",
        "the folder {path}{other} does not exist on the engine's machine, so no container can see it",
        "create the folder first; an engine on another machine cannot mount folders of this machine",
    ),
    _means(
        # The first words are Docker's, the second podman's.
        r"network (?P<network>\S+) not found|unable to find network.* (?P<other>\S+):",
        EngineError,
        "network-not-found",
        "the engine has no network named {network}{other}",
        "`docker network ls` lists the networks; `none`, `host` and `bridge` are built in",
    ),
    _means(
        # The first words are Docker's, the second podman's.
        r"No such image: (?P<image>\S+)|(?P<other>\S+): image not known",
        EngineError,
        "image-missing",
        "the engine does not have the image {image}{other}",
        "build or pull the image first",
    ),
    _means(
        r"^reference does not exist",
        EngineError,
        "image-missing",
        "the engine lacks an image, so it cannot {what}",
        "build or pull the image first",
    ),
    _means(
        r"No such container|is dead or marked for removal",
        EngineError,
        "container-gone",
        "the container is gone: {what}",
        "somebody removed the container; run the same command again",
    ),
    _DOCKERFILE,
)


def _interpret(meanings: Iterable[_Meaning], words: str, program: str, **names: str) -> TfdockError | None:
    """Return the error of the first meaning whose text fits; None if no text fits."""
    for meaning in meanings:
        match = meaning.words.search(words)
        if match:
            return meaning.problem(match, program, **names)
    return None


def refusal(action: str, words: str, program: str = "docker") -> TfdockError:
    """Return the error for a request that the engine refused. `program` is its command: `docker` or `podman`."""
    return _interpret(_REFUSALS, words, program, what=action) or EngineError.of(
        "engine-refused",
        f"the engine refused to {action}: {words}",
        own_words(
            "this message comes from the engine; the engine's log (`journalctl -u docker`) may have details", program
        ),
    )


def archive_refusal(words: str, program: str = "docker") -> TfdockError:
    """Return the error for an archive of images that the engine did not accept."""
    return _interpret((_DISK,), words, program, what="load images") or EngineError.of(
        "image-archive-refused",
        f"the engine cannot load the images of the archive: {words}",
        "create the archive again; if a newer engine created it, this machine may need a newer engine too",
    )


def registry_refusal(reference: str, words: str, program: str = "docker") -> TfdockError:
    """Return the error for an image that could not be fetched."""
    return _interpret(_REGISTRY, words, program, what=f"`{reference}`", where=_registry_of(reference)) or refusal(
        f"fetch `{reference}`", words, program
    )


def push_refusal(name: str, words: str, program: str = "docker") -> TfdockError:
    """Return the error for an image that could not be pushed."""
    return _interpret(_PUSH, words, program, what=f"`{name}`", where=_registry_of(name)) or refusal(
        f"send `{name}`", words, program
    )


def step_refusal(step: str, words: str, program: str = "docker") -> TfdockError | None:
    """Return the error for a failed image step, if the engine's message says why the step failed."""
    return _interpret((_DISK, _USER_NAMESPACE, _DOCKERFILE), words, program, what=f"the image step `{step}`")


def speaks_of_full_disk(words: str) -> bool:
    """Return whether output says that a disk is full."""
    return _DISK.words.search(words) is not None


def _registry_of(reference: str) -> str:
    try:
        return f"the registry {ImageRef.parse(reference).registry}"
    except ValueError:
        return "its registry"
