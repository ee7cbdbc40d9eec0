"""The types that all stages share: versions, capabilities, images, and the frozen records of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, total_ordering
from typing import NewType

#: The name of a build in selectors, image tags, log folders and CI jobs (`tf2.18.0-py3.11-cpu-x86_64`).
BuildId = NewType("BuildId", str)

Digest = NewType("Digest", str)  #: `sha256:` and 64 hexadecimal digits.

#: The fields of a profile that list targets. GPUs in `gpus` must be able to run code for such targets.
TARGET_FIELDS = ("compute_capabilities", "amdgpu_targets", "targets")

#: A compiler option for the build machine's CPU. The code depends on this CPU, even with tuning only.
NATIVE = re.compile(r"-m(arch|cpu|tune)=native")


@lru_cache(maxsize=4096)  # a resolution compares several hundred versions, several thousand times
def _order(text: str) -> tuple[tuple[int, ...], bool, tuple[int | str, ...]]:
    """Return the leading numbers, whether no suffix follows, and the suffix split at its numbers (`rc10` > `rc9`)."""
    # Bounded, because a version may be untrusted text: int() refuses more than 4,300 digits.
    match = re.match(r"\d{1,50}(\.\d{1,50})*", text)
    numbers = match.group() if match else ""
    suffix = text[len(numbers) :]
    parts = tuple(int(part) for part in numbers.split(".")) if numbers else ()
    # Text and numbers alternate, so that only equal types are compared.
    words = tuple(int(word) if index % 2 else word for index, word in enumerate(re.split(r"(\d{1,50})", suffix)))
    return parts, not suffix, words


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A dotted version that compares by numbers (`12.10` > `12.9`) and prints as it was written.

    Trailing zeros count: `12.5` is a prefix of `12.5.0`, not equal to it; see `matches`. A suffix marks a
    pre-release: `2.18.0-rc1` comes before `2.18.0`.
    """

    text: str

    @property
    def parts(self) -> tuple[int, ...]:
        """The leading numeric components; a suffix such as `-rc1` is left out."""
        return _order(self.text)[0]

    @property
    def minor(self) -> Version:
        """The first two components: `2.18` of `2.18.0`."""
        return _minor(self.text)

    def matches(self, prefix: Version) -> bool:
        """Whether this is `prefix` or a more exact version of it: 12.5.1 matches 12.5 and 12."""
        return self.parts[: len(prefix.parts)] == prefix.parts

    def __eq__(self, other: object) -> bool:
        return _order(self.text) == _order(other.text) if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return _order(self.text) < _order(other.text) if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash(_order(self.text))

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def _minor(text: str) -> Version:
    return Version(".".join(str(part) for part in _order(text)[0][:2]))


@lru_cache(maxsize=4096)
def same_minor(version: str, other: str) -> bool:
    """Return whether two versions share the first two parts: 4.8, 4.8.5. A missing part fits any: 18, 18.1."""
    length = min(2, len(Version(version).parts), len(Version(other).parts))
    # Compare only the parts that both have: `18` can mean 18.1 and 18.2.
    return Version(version).parts[:length] == Version(other).parts[:length]


_CAPABILITY = re.compile(r"(sm|compute)_(\d{1,2})(\d)([af]?)\Z")
_DOTTED = re.compile(r"(\d{1,2})\.(\d)\Z")


@dataclass(frozen=True, slots=True, order=True)
class Capability:
    """A compute capability to compile for, ordered by numbers: as text, `12.0` would come before `8.6`.

    `sm_86` asks for SASS only; `compute_86` asks for SASS and PTX (TensorFlow's own meaning, from
    cuda_configure.bzl: "'compute_xy' refers to both PTX and SASS, 'sm_xy' refers to SASS only").
    """

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    @lru_cache(maxsize=4096)
    def parse(cls, text: str) -> Capability:
        """Read `sm_86`, `compute_90`, `sm_90a` or `sm_120`; raises ValueError for anything else."""
        match = _CAPABILITY.match(text)
        if not match:
            raise ValueError(f"not a compute capability: {text!r}")
        kind, major, minor, suffix = match.groups()
        return cls(int(major), int(minor), suffix, kind == "compute")

    @classmethod
    @lru_cache(maxsize=4096)
    def of_gpu(cls, dotted: str) -> Capability:
        """Return the SASS-only target for a compute capability in NVIDIA's notation: `8.6`, `12.0`."""
        match = _DOTTED.match(dotted)
        if not match:
            raise ValueError(f"not a dotted compute capability: {dotted!r}")
        return cls(int(match[1]), int(match[2]))

    @property
    def number(self) -> str:
        """The text after `sm_`: `86`, `90a`, `120`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def dotted(self) -> str:
        """The form that releases before 2.3 use: `8.6`."""
        return f"{self.major}.{self.minor}"

    def __str__(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.number}"


_REFERENCE = re.compile(
    r"(?:(?P<registry>[a-zA-Z0-9.-]+(?::\d+)?|localhost)/)?"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?\Z"
)


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A container image's name (grammar: OCI distribution specification).

    A name without a registry has the registry `docker.io`. As in Docker, the first component is a registry only if it
    contains a dot or a colon, or is `localhost`.
    """

    repository: str
    registry: str = "docker.io"
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """Read `tensorflow/build:2.18-python3.11`, with or without registry and digest; ValueError otherwise."""
        match = _REFERENCE.match(text)
        if not match:
            raise ValueError(f"not an image reference: {text!r}")
        registry, repository = match["registry"], match["repository"]
        if registry and not ("." in registry or ":" in registry or registry == "localhost"):
            if registry != registry.lower():
                raise ValueError(f"not an image reference: {text!r}; only a registry may have capitals")
            registry, repository = None, f"{registry}/{repository}"
        return cls(repository, registry or "docker.io", match["tag"], match["digest"])

    def tagged(self, tag: str) -> ImageRef:
        """Return the image with that tag in the same repository."""
        return ImageRef(self.repository, self.registry, tag)

    def at(self, registry: str) -> ImageRef:
        """Return the same image on another registry (a mirror).

        On Docker Hub and its mirrors, names without a slash are below `library/`.
        """
        official = self.registry == "docker.io" and "/" not in self.repository
        return ImageRef(
            f"library/{self.repository}" if official else self.repository, registry, self.tag, self.digest
        )

    def __str__(self) -> str:
        registry = "" if self.registry == "docker.io" else f"{self.registry}/"
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{registry}{self.repository}{tag}{digest}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a remote cache or executor. `path` begins with `/` or is empty; `scheme` is one of four."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """`host:port`, without the default port."""
        return self.host if self.port == {"http": 80, "https": 443}.get(self.scheme) else f"{self.host}:{self.port}"

    @property
    def tls(self) -> bool:
        """Whether connections to the endpoint use TLS."""
        return self.scheme in ("https", "grpcs")

    @property
    def http(self) -> bool:
        """Whether the endpoint uses HTTP/1.1 instead of gRPC."""
        return self.scheme in ("http", "https")

    def __str__(self) -> str:
        """Scheme and host, for records and messages."""
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Caches and executors on other machines. `jobs` is how many actions run at once with an executor.

    `upload`: results of this machine are uploaded.
    """

    cache: Endpoint | None = None
    executor: Endpoint | None = None
    instance: str = ""
    upload: bool = True
    jobs: int | None = None

    @property
    def endpoints(self) -> tuple[tuple[str, Endpoint], ...]:
        """The endpoints that are set, each with its role: `cache` or `executor`."""
        pairs = (("cache", self.cache), ("executor", self.executor))
        return tuple((role, endpoint) for role, endpoint in pairs if endpoint)


NOWHERE = Remote()  #: Neither a remote cache nor an executor.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFiles:
    """Files that a container is expected to write. `pattern` is a path; `*` matches within one part of the path.

    At most `most` files are copied, with at most `size` bytes in total. An `optional` file that is not plain or is
    too large is left out; any other such file ends the build.
    """

    pattern: str
    most: int = 1
    size: int = 1 << 20
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder a container sees. `kind` is `bind` (source is a path) or `volume` (source is its name).

    On a remote engine, each bound folder becomes a volume. A `given` mount is filled from this machine for each
    container. A mount with a `volume` keeps its contents in the volume of this name for later runs; other mounts keep
    them only for the run. When a container has succeeded, the files that `results` expects are copied into
    `results_folder`.
    """

    source: str
    target: str
    read_only: bool = False
    kind: str = "bind"
    given: bool = False
    results: tuple[ExpectedFiles, ...] = ()
    results_folder: str = ""
    volume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One resolved value."""

    field: str  #: The choice, such as `cuda` or `wheel.name`.
    value: str  #: The value.
    source: str  #: Where the value comes from: `profile`, `default`, `lock`, or a row of the knowledge base.
    reason: str  #: Why this value.


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where TensorFlow's source comes from, and the identity that the fingerprint sees.

    `kind` is `git` (`location` is the URL, `refs` the candidates in order, `commit` when known), `archive`
    (`location` is the URL, `sha256` pins it) or `path` (`location` is a folder, `sha256` its tree hash).
    """

    kind: str
    location: str
    refs: tuple[str, ...] = ()
    commit: str | None = None
    locked: bool = False  #: True if a lock names the commit. If the ref has moved, the commit itself is fetched.
    sha256: str | None = None
    patches: Mapping[str, bytes] = field(default_factory=dict)
    leaves_failed_compile: bool = False  #: Whether to try the next ref if the source of one does not compile.
    #: True for the release's own tag, even with patches: names show patches by a separate hash.
    official: bool = False
    folder: str = ""  #: The real path of a local checkout. The name of its trust domain is made from this path.


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a build may use of this machine: cores, memory and swap in bytes. The caller collects the values."""

    cpus: int
    memory: int
    swap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """A GPU of this machine, as its driver reports it.

    `target`: for example `8.6` or `gfx90a`. `memory`: in bytes. Both are None if the driver does not report them.
    `accelerator`: the family of accelerators whose tool found the GPU.
    """

    name: str
    accelerator: str
    target: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Devices and drivers of this machine, collected by the caller.

    `drivers` maps an accelerator to its driver's version (on WSL2 the driver of Windows). `troubles` maps an
    accelerator to the error message of its tool, if the tool failed. `architecture` is the CPU's, such as `x86_64`.
    """

    gpus: tuple[LocalGpu, ...] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    wsl: bool = False
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableFolder:
    """A folder on this machine that a build writes to, and its state when it was checked.

    `what` is a readable name (`the cache`). `share` is the part of the build's disk need that falls on this folder.
    `free` is the free space in bytes, and `filesystem` identifies the file system; both are None if not known.
    `trouble` is the reason why the folder is unusable; `option` chooses another folder.
    """

    what: str
    path: str
    share: float
    free: int | None = None
    filesystem: str | None = None
    trouble: str = ""
    option: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts about the engine. `memory` in bytes; `data_root` is a path on the engine's machine."""

    name: str
    version: str
    api_version: str
    cpus: int
    memory: int
    data_root: str
    runtimes: tuple[str, ...] = ()
    id: str = ""  #: A permanent id, unique to this engine.
    address: str = ""  #: The engine's address, and where the address comes from; for people.
    local: bool = True  #: False if the engine runs on another machine, where other paths are valid.
    owner: int | None = None  #: The uid of the user who runs the engine, if the engine is a process on this machine.
    rootless: bool = False  #: A user without root runs the engine: root in a container is that user outside.
    #: The engine gives each container a user namespace (`userns-remap`), in which no user is the caller.
    remaps_users: bool = False
    selinux: bool = False  #: The engine labels containers. Labelled containers may read no folder of this machine.
    limits_memory: bool = True
    #: Whether the engine can limit the CPUs of containers. For this, the engine needs write access to control groups.
    limits_cpus: bool = True
