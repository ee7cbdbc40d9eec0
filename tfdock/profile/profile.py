"""The profile: its fields and types, parsed from text. All problems are reported at once, with positions.

Narrow types are the first protection against injection: a value that reaches a Dockerfile, a shell or a command line
cannot contain a control character, and cannot be mistaken for an option.
"""

from __future__ import annotations

import difflib
import re
import types
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tfdock.errors import MOST_PROBLEMS, Problem, ProfileError, joined
from tfdock.profile import endpoint, yaml_nodes
from tfdock.profile.units import DURATION, MEMORY
from tfdock.types import TARGET_FIELDS, ImageRef

MAX_EXTENDS = 8  #: The longest chain of profiles that extend one another.


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that a whole text must match. It is checked by tfdock, and by editors that read the JSON Schema."""

    expression: str
    example: str

    def check(self, text: str) -> str:
        # `match` and `$` would accept a line break at the end. Without ASCII, `\d` takes digits of every script.
        if re.fullmatch(self.expression, text, re.ASCII):
            return text
        # The part before the `@` of an address may be a secret.
        public = re.sub(r"(?<=//)[^/@\s]+@", "…@", text)
        message = f"`{yaml_nodes.shown(public)}` does not look like {self.example}"
        for near in (
            text.strip(),
            text.lower(),
            text.lstrip("v"),
            re.sub(r"(?i)^(sm|compute)[\s-]", r"\1_", text).lower(),
        ):
            if re.fullmatch(self.expression, near, re.ASCII):
                raise wrong(message, f"did you mean `{near}`?")
        raise ValueError(message)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # JSON Schema searches for a pattern anywhere, so it needs both ends.
        return {**handler(schema), "pattern": f"^(?:{self.expression})$"}


def wrong(message: str, fix: str, *where: str) -> PydanticCustomError:
    """Return a problem with its fix; `where` is the path from the checked value to the wrong value."""
    # A template, because pydantic fills in braces, and the message may contain braces from the user's text.
    return PydanticCustomError("tfdock", "{message}", {"message": message, "fix": fix, "where": where})


def _image(text: str) -> str:
    # `[a-z…]` of a registry's name would accept a leading dash, which a command takes for an option.
    if not text.isascii() or text.startswith("-"):
        raise ValueError(f"not an image reference: {text!r}")
    ImageRef.parse(text)
    return text


def no_control_characters(text: str) -> str:
    """Return the text if it is one line without control characters; raises ValueError."""
    if not text.isprintable():
        raise ValueError("contains a control character or line break")
    return text


def _not_our_own(flag: str) -> str:
    name = flag.removeprefix("--").split("=")[0]
    # Old OptionsParserImpl.java takes `--no_x` for `--nox`. No version accepts abbreviated long names.
    for spelling in (name, name.removeprefix("no"), name.removeprefix("no_")):
        own = _OLD_SPELLINGS.get(spelling, spelling)
        if own in _OWN_FLAGS:
            raise wrong(f"`--{name}` is tfdock's own: {_OWN_FLAGS[own][0]}", f"remove it; {_OWN_FLAGS[own][1]}")
    return flag


# YAML reads `3.10` as 3.1, so a number may have lost a digit already.
class _IsVersion:
    """Marks the text fields that are versions: a number in such a field gets its own message."""


VersionText = Annotated[
    str, _IsVersion(), Pattern(r"\d{1,6}(\.\d{1,6}){0,3}(-?(rc|a|b|dev)\d{1,6})?", "a version (`2.18.0`)")
]
PythonText = Annotated[str, _IsVersion(), Pattern(r"[23]\.\d{1,2}", "a Python version (`3.11`)")]
_NAME = Pattern(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", "a plain name")
Word = Annotated[str, _NAME]
# As a short name of ours or as the driver prints it: `NVIDIA GeForce RTX 3080 Ti (Laptop)`.
GpuName = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9 ._+()/-]*", "a GPU's name")]
GitRef = Annotated[
    str,
    # The rules of `git check-ref-format`, as far as such characters are accepted. A leading `-` is an option.
    Pattern(r"(?!.*(\.\.|//|@\{|\.lock$|/$|\.$))[A-Za-z0-9_][A-Za-z0-9_./+-]{0,250}", "a git branch, tag or commit"),
]
GitUrl = Annotated[
    str,
    Pattern(
        # The address ends up in the image's history. Over HTTP the user's name may be a token.
        r"(https?://(?![^/]*@)|(git|ssh|file)://(?![^/@]*:[^/@]*@))[A-Za-z0-9_.~:@%/+-]+"
        r"|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9.-]+:[A-Za-z0-9_./~-]+",
        "a git address without password or token (`https://github.com/tensorflow/tensorflow.git`)",
    ),
]
Url = Annotated[
    str, Pattern(r"(https?|file)://(?![^/]*@)[A-Za-z0-9_.~:@%/+=&?,-]+", "a web address without a password")
]
Sha256 = Annotated[str, Pattern(r"[0-9a-f]{64}", "64 hexadecimal digits")]
Path_ = Annotated[str, AfterValidator(no_control_characters)]
ImageText = Annotated[str, AfterValidator(_image)]
Flag = Annotated[
    str,
    AfterValidator(no_control_characters),
    # `@`, `/` and `:` are in flags that a rule defines, such as `--@rules//python:version=3.11`.
    Pattern(r"--[a-z0-9_@/:]+(=.*)?", "a Bazel flag"),
    AfterValidator(_not_our_own),
]
Copt = Annotated[str, AfterValidator(no_control_characters), Pattern(r"-.+", "a compiler flag")]
Sentence = Annotated[str, AfterValidator(no_control_characters), Pattern(r"\S.{4,200}", "a reason as text")]
Memory = Annotated[str, Pattern(MEMORY, "an amount of memory (`24GiB`)")]
Duration = Annotated[str, Pattern(DURATION, "a duration (`5h30m`)")]


def _not_dotted(text: str) -> str:
    """Refuse `8.6`: NVIDIA writes capabilities so, but `8.6` does not say whether SASS or PTX is meant."""
    if re.fullmatch(r"\d{1,2}\.\d[af]?", text, re.ASCII):
        number = text.replace(".", "")
        fix = f"write `sm_{number}` for SASS, `compute_{number}` for SASS and PTX"
        raise wrong(f"`{text}` is not a target", fix)
    return text


Target = Annotated[
    str,
    AfterValidator(_not_dotted),
    Pattern(r"[a-z]+_?[0-9]+[a-z0-9]*", "a target such as `sm_86`, `compute_86` or `gfx90a`"),
]


def _without_version(text: str) -> str:
    """Refuse `gcc 13` and `gcc-13`: the version belongs in a separate field."""
    if found := re.fullmatch(r"(gcc|g\+\+|clang)[\s-]*(\d+(?:\.\d+)*)", text):
        name = found[1].replace("g++", "gcc")
        raise wrong(f"`{text}` is a compiler with its version", f'write `{{name: {name}, version: "{found[2]}"}}`')
    return text


CompilerName = Annotated[str, AfterValidator(_without_version), _NAME]


_T = TypeVar("_T")
_R = TypeVar("_R", bound=BaseModel)


#: The most entries of each list and map: each GPU, target and component is searched among all known ones.
_MOST_ENTRIES = 256


def _not_empty(words: list[_T]) -> list[_T]:
    if not words:
        raise wrong("the list is empty", "add at least one, or remove the line")
    return words


ListOf = Annotated[list[_T], AfterValidator(_not_empty)]


class Record(BaseModel):
    """A map in a document: only its fields are allowed."""

    # Deferred: only the whole profile is validated, its parts with it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class TensorFlow(Record):
    """The source to build; `release` names the release whose rules apply."""

    release: VersionText = Field(description="The release whose rules apply to the source", examples=["2.18.0"])
    git: GitUrl | None = Field(
        None,
        description="A git repository other than TensorFlow's own",
        examples=["https://github.com/me/tensorflow.git"],
    )
    ref: GitRef | None = Field(
        None, description="A branch, tag or commit; the release's tag by default", examples=["v2.18.0"]
    )
    fallback: list[GitRef] = Field(
        [], description="Refs to try if `ref` cannot be fetched, configured or analysed", examples=[["master"]]
    )
    fallback_on: Literal["analysis", "compile"] = Field(
        "analysis",
        description="`compile`: also try the next ref if a ref does not compile",
        examples=["compile"],
    )
    archive: Url | None = Field(
        None,
        description="A source archive (.tar.gz or .zip); `sha256` is also required",
        examples=["https://example.org/tensorflow-2.18.0.tar.gz"],
    )
    sha256: Sha256 | None = Field(None, description="The archive's sha256, as `sha256sum` prints it")
    path: Path_ | None = Field(
        None, description="A local checkout, relative to the profile", examples=["../tensorflow"]
    )
    patches: list[Path_] = Field(
        [], description="Patches to apply, in order, relative to the profile", examples=[["fix.patch"]]
    )

    @property
    def is_own(self) -> bool:
        """Whether the source differs from the release's own tag."""
        return bool(self.git or self.ref or self.archive or self.path or self.patches)

    @property
    def is_tag(self) -> bool:
        """Whether the source is a release's tag of a repository, without patches."""
        tag = re.fullmatch(r"(?:refs/tags/)?v\d+\.\d+\.\d+(?:-?rc\d+)?", self.ref or "")
        return tag is not None and not (self.archive or self.path or self.patches)

    @model_validator(mode="after")
    def _one_kind(self) -> TensorFlow:
        kinds = [name for name in ("git", "archive", "path") if getattr(self, name)]
        if len(kinds) > 1:
            message = f"{' and '.join(f'`{kind}`' for kind in kinds)} exclude one another"
            raise wrong(message, "keep one", kinds[-1])
        # An archive without a sum could be another one tomorrow, under the same fingerprint.
        if self.archive and not self.sha256:
            raise wrong("`archive` needs its `sha256`", "add `sha256: …`, as `sha256sum` prints it", "archive")
        if self.sha256 and not self.archive:
            raise wrong("`sha256` belongs to an `archive`", "remove `sha256`, or name the `archive`", "sha256")
        for name in ("ref", "fallback"):
            if getattr(self, name) and (self.archive or self.path):
                raise wrong(f"`{name}` belongs to a git source", f"remove `{name}`", name)
        if self.fallback_on == "compile" and not self.fallback:
            raise wrong("a fallback needs a `ref` to start from", "name one: `fallback: […]`", "fallback_on")
        return self


class Bazel(Record):
    """Bazel's version, and additions to its command line."""

    version: VersionText | None = Field(
        None, description="Bazel's version; the release's own by default", examples=["6.5.0"]
    )
    configs: list[Word] = Field([], description="Further `--config=` names", examples=[["mkl"]])
    copts: list[Copt] = Field([], description="Further compiler options, for every C++ file", examples=[["-O3"]])
    flags: list[Flag] = Field([], description="Further flags of `bazel build`", examples=[["--subcommands"]])
    startup: list[Flag] = Field([], description="Further startup options", examples=[["--host_jvm_args=-Xmx4g"]])


# Flag -> why the user must not set it, and what to use instead. Bazel's negations (`--no…`) are refused too.
_OWN_FLAGS = {
    "bazelrc": ("the build's flags must all be in the plan", "put its flags into `bazel: {flags: …}`"),
    "output_base": ("every run has its own output base", "set `--cache-dir` to move it"),
    "output_user_root": ("every run has its own output base", "set `--cache-dir` to move it"),
    "install_base": ("Bazel is already unpacked in the image", "remove it"),
    "symlink_prefix": ("the wheel is collected from bazel-bin", "remove it"),
    "disk_cache": ("it would differ from the plan", "set `--cache-dir` or TFDOCK_CACHE_DIR"),
    "repository_cache": ("it would differ from the plan", "set `--cache-dir` or TFDOCK_CACHE_DIR"),
    "remote_cache": ("the compile container has no network", "set `cache: {remote: …}`"),
    "remote_executor": ("the compile container has no network", "set `cache: {executor: …}`"),
    "remote_proxy": ("the compile container has no network", "set `cache: {remote: …}`"),
    "remote_instance_name": ("the endpoint decides it", "set `cache: {instance: …}`"),
    "remote_upload_local_results": ("the endpoint decides it", "set `cache: {upload: …}`"),
    "remote_header": ("profiles must not contain credentials", "set TFDOCK_REMOTE_HEADER"),
    "remote_cache_header": ("profiles must not contain credentials", "set TFDOCK_REMOTE_HEADER"),
    "remote_exec_header": ("profiles must not contain credentials", "set TFDOCK_REMOTE_HEADER"),
    "remote_default_exec_properties": ("tfdock uses it to separate compilers", "remove it"),
    "remote_default_platform_properties": ("tfdock uses it to separate compilers", "remove it"),
    "jobs": ("tfdock sets it from the memory", "set `resources: {jobs: …}`"),
    "local_ram_resources": ("tfdock sets it from the container", "set `resources: {memory: …}`"),
    "local_cpu_resources": ("tfdock sets it from the container", "set `resources: {cpus: …}`"),
    "local_resources": ("tfdock sets it from the container", "set `resources: {memory: …, cpus: …}`"),
    "script_path": ("it would run a program outside the build", "remove it"),
    "build_event_json_file": ("tfdock makes the build record from it", "the record holds Bazel's figures"),
}
#: Other names under which some version of Bazel accepts an option that tfdock sets itself.
#: The comments below say which of Bazel's source files each name comes from.
_OLD_SPELLINGS = {
    # startup_options.cc and bazel_startup_options.cc of old versions.
    "blazerc": "bazelrc",
    "master_blazerc": "bazelrc",
    "master_bazelrc": "bazelrc",
    # RemoteOptions.java of old versions. Bazel's CHANGELOG says that `--disk_cache` replaces the first two.
    "experimental_local_disk_cache": "disk_cache",
    "experimental_local_disk_cache_path": "disk_cache",
    "remote_rest_cache": "remote_cache",
    # The `oldName`s of RemoteOptions.java, RepositoryOptions.java and BuildEventStreamOptions.java.
    "remote_http_cache": "remote_cache",
    "experimental_repository_cache": "repository_cache",
    "experimental_build_event_json_file": "build_event_json_file",
}


class Resources(Record):
    """Limits of a build; `auto` computes them from the machine or the cgroup."""

    jobs: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto", description="Compile jobs at once", examples=[8]
    )
    memory: Memory | Literal["auto"] = Field(
        "auto", description="Memory limit of the build container", examples=["24GiB"]
    )
    cpus: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field("auto", description="Cores", examples=[8])
    disk: Memory | Literal["auto"] = Field(
        "auto", description="Free disk that a build must find", examples=["120GiB"]
    )
    time_limit: Duration | None = Field(
        None, description="Stop cleanly, keeping the cache, after this long", examples=["5h30m"]
    )


class PerFile(Record):
    """Compiler options for the files that match a Bazel label pattern."""

    # Bazel takes everything after the first `@` as compiler options, and such options may run programs.
    files: Annotated[
        str, AfterValidator(no_control_characters), Pattern(r"[^@]+", "a list of labels without `@` (`//x.*`)")
    ] = Field(
        description="Labels or paths in the form of `--per_file_copt`: `+third_party/.*,-//x.*`",
        examples=["+third_party/.*,-//x.*"],
    )
    copts: list[Copt] = Field(description="Compiler options for these files", examples=[["-g"]])


class Debug(Record):
    """A debug build: compilation mode, symbols, options per file."""

    mode: Literal["opt", "dbg", "fastbuild"] = Field("dbg", description="Bazel's compilation mode")
    symbols: bool = Field(True, description="Keep debug information")
    per_file: list[PerFile] = Field([], description="Options for some files only")


class OwnBase(Record):
    """The user's own base image. With `provides`, it must have all build tools, and tfdock installs nothing in it."""

    image: ImageText = Field(description="The image", examples=["registry.example/tensorflow-tools:1"])
    provides: dict[Word, VersionText] | None = Field(
        None,
        description="The tools in the image, with versions; tfdock then installs no tools",
        examples=[{"bazel": "6.5.0"}],
    )


class HostCompiler(Record):
    """The compiler of the C++ code."""

    name: CompilerName = Field(description="gcc, clang, or a compiler of your `--knowledge` folder", examples=["gcc"])
    version: VersionText | None = Field(
        None, description="Its version, at the path where Debian and Ubuntu install it", examples=["11"]
    )
    path: Annotated[Path_, Pattern(r"/.+", "an absolute path (`/usr/bin/gcc-11`)")] | None = Field(
        None, description="The compiler's path in the base image", examples=["/usr/bin/gcc-11"]
    )


class WheelNaming(Record):
    """The names of the wheel."""

    name: Word | None = Field(None, description="Project name instead of `tensorflow`", examples=["my-tensorflow"])
    local_version: Annotated[str, Pattern(r"[a-z0-9]+(\.[a-z0-9]+)*", "a local version (`cuda12.5.sm86`)")] | None = (
        Field(
            None,
            description="Local version; made from the toolkit and capabilities by default",
            examples=["cuda12.5.sm86"],
        )
    )
    platform: (
        Annotated[str, Pattern(r"manylinux_2_[1-9]\d?", "a platform tag without a machine (`manylinux_2_28`)")] | None
    ) = Field(
        None,
        description="Platform tag instead of `linux`, for a wheel whose libraries fit this tag",
        examples=["manylinux_2_28"],
    )


def _no_login(text: str) -> str:
    if endpoint.has_login(text):
        raise wrong(
            "the address contains a user or a password",
            "remove the part before the `@`; credentials come from TFDOCK_REMOTE_HEADER or a helper",
        )
    return text


CacheUrl = Annotated[
    str,
    AfterValidator(_no_login),
    Pattern(
        endpoint.CACHE, "the address of a remote cache (`https://cache.example:8443`, `grpc://cache.example:9092`)"
    ),
]
ExecutorUrl = Annotated[
    str,
    AfterValidator(_no_login),
    Pattern(endpoint.EXECUTOR, "the address of a remote executor (`grpcs://executor.example:443`)"),
]


class Cache(Record):
    """A remote cache and executor; both speak Bazel's remote APIs."""

    remote: CacheUrl | None = Field(
        None,
        description="A remote cache: http, https, grpc or grpcs; credentials are not allowed here",
        examples=["grpcs://cache.example:443"],
    )
    executor: ExecutorUrl | None = Field(
        None, description="Where actions are executed: grpc or grpcs", examples=["grpcs://executor.example:443"]
    )
    instance: Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", "an instance name (`main`)")] | None = (
        Field(None, description="The server's instance name", examples=["main"])
    )
    upload: bool = Field(True, description="Upload local results to the remote cache")
    jobs: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Parallel actions with an executor, independent of this machine", examples=[200]
    )


class Verify(Record):
    """How the finished wheel is checked."""

    run: bool = Field(True, description="Install and try the wheel in a clean container")
    gpu_code: Literal["strict", "relaxed"] = Field(
        "strict", description="Whether GPU code beyond the requested targets is an error (strict) or not (relaxed)"
    )


Cpu = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]{0,30}", "a CPU feature such as `avx2`")]


class Profile(Record):
    """One wheel to build."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this format")
    extends: Path_ | None = Field(
        None, description="A profile to extend: maps are merged, lists are replaced", examples=["base.yaml"]
    )
    tensorflow: VersionText | TensorFlow = Field(
        description="A release, or a source and the release whose rules apply to it", examples=["2.18.0"]
    )
    python: PythonText | None = Field(
        None, description="Python of the wheel; by default the newest that the release supports", examples=["3.11"]
    )
    accelerator: Word | None = Field(
        None, description="cuda, rocm or cpu; by default, the other fields decide", examples=["cuda"]
    )
    gpus: ListOf[GpuName] | Literal["local"] | None = Field(
        None,
        description="GPU names, or `local` for this machine's GPUs; with targets: GPUs that the targets must serve",
        examples=[["rtx3080"]],
    )
    compute_capabilities: ListOf[Target] | None = Field(
        None, description="Targets: `sm_86` for SASS, `compute_86` for SASS and PTX", examples=[["sm_86"]]
    )
    amdgpu_targets: ListOf[Target] | None = Field(
        None, description="What to compile: gfx targets", examples=[["gfx90a"]]
    )
    targets: ListOf[Target] | None = Field(
        None, description="Targets to compile for, of any other accelerator", examples=[["gfx90a"]]
    )
    cuda: VersionText | None = Field(None, description="CUDA version; the tested one by default", examples=["12.5.1"])
    cudnn: VersionText | None = Field(
        None, description="cuDNN version; the tested one by default", examples=["9.3.0"]
    )
    rocm: VersionText | None = Field(None, description="ROCm version", examples=["6.2.0"])
    components: dict[Word, VersionText] = Field(
        {},
        max_length=32,
        description="Versions, by name, of an accelerator's components that have no own field",
        examples=[{"toolkit": "1.2.3"}],
    )
    compiler: Word | None = Field(
        None, description="Compiler of the GPU code: clang or nvcc; the release's own by default", examples=["nvcc"]
    )
    host_compiler: HostCompiler | CompilerName | None = Field(
        None, description="Compiler of the C++ code: gcc or clang; the release's own by default", examples=["gcc"]
    )
    xla: bool = Field(True, description="Build XLA")
    cloud: bool = Field(True, description="Build the code for Google's, Amazon's and Hadoop's file systems")
    optimize: Literal["portable", "native"] | ListOf[Cpu] = Field(
        "portable",
        description="CPU code: portable, this machine's only, or named features",
        examples=[["avx2", "fma"]],
    )
    debug: bool | Debug = Field(False, description="Build with symbols and without optimisation")
    base: OwnBase | ImageText | None = Field(
        None, description="Base image in place of the default image", examples=["ubuntu:22.04"]
    )
    runtime: ImageText | None = Field(
        None,
        description="Image in which the wheel is tried; by default the known image with its Python",
        examples=["python:3.11-slim-bookworm"],
    )
    verify: Verify = Field(Verify(), description="How the finished wheel is checked")
    bazel: Bazel = Field(Bazel(), description="Bazel's version, and additions to its command line")
    resources: Resources = Field(Resources(), description="Limits of the build")
    cache: Cache = Field(Cache(), description="A remote cache, and remote execution")
    wheel: WheelNaming = Field(WheelNaming(), description="The names of the wheel")
    allow_untested: bool = Field(False, description="Build combinations without a known test")
    allow_failing: Sentence | None = Field(
        None,
        description="Build a combination that is known to fail; the value says why it should work here",
        examples=["the base image has a patched CUB"],
    )
    edits: Literal["none", "all"] | None = Field(
        None,
        description="Where tfdock fixes known faults of the source: in releases, also in your own source (`all`), or "
        "nowhere (`none`)",
    )

    @property
    def mends_source(self) -> bool:
        """Whether tfdock fixes known faults of the source."""
        # Another source may already contain the fixes.
        return self.edits == "all" or (self.edits is None and not self.source.is_own)

    @property
    def base_image(self) -> str | None:
        """The user's base image, or None."""
        return self.base.image if isinstance(self.base, OwnBase) else self.base

    @property
    def provides(self) -> Mapping[str, str] | None:
        """Tool -> version, for a base image with all tools; None if tfdock installs missing tools."""
        tools = self.base.provides if isinstance(self.base, OwnBase) else None
        # For Python, only the first two numbers of the version count.
        return tools and {name: v if name != "python" else ".".join(v.split(".")[:2]) for name, v in tools.items()}

    @property
    def asked_bazel(self) -> tuple[str, str]:
        """The version of Bazel that the profile asks for, and its field; empty if it asks for none."""
        if self.bazel.version:
            return self.bazel.version, "bazel.version"
        given = (self.provides or {}).get("bazel", "")
        return given, "base.provides.bazel" if given else ""

    @property
    def source(self) -> TensorFlow:
        """The long form of `tensorflow`."""
        return self.tensorflow if isinstance(self.tensorflow, TensorFlow) else TensorFlow(release=self.tensorflow)

    @property
    def release_field(self) -> str:
        """The path of the release in the profile."""
        return "tensorflow" if isinstance(self.tensorflow, str) else "tensorflow.release"

    @property
    def for_this_machine(self) -> bool:
        """Whether `gpus` contains `local`, alone or with names."""
        return "local" in (self.gpus or ())

    @property
    def named_gpus(self) -> tuple[str, ...]:
        """The names in `gpus`, without `local`."""
        return () if self.gpus == "local" else tuple(name for name in self.gpus or () if name != "local")

    @property
    def listed_targets(self) -> list[str]:
        """The targets that the profile lists, in any field."""
        return [target for field in TARGET_FIELDS for target in getattr(self, field) or ()]

    def asked_version(self, component: str) -> str:
        """Return the version of a component that the profile requests in any field; empty without a request."""
        version = self.components.get(component) or getattr(self, component, None)
        # Not every field of a profile is a version: a row of failures may also name `bazel`.
        return version if isinstance(version, str) else ""

    def is_set(self, path: str) -> bool:
        """Return whether the profile sets a field to a value that is not the default."""
        outer, _, name = path.rpartition(".")
        model: Any = getattr(self, outer, None) if outer else self
        if isinstance(model, dict):
            return name in model
        info = getattr(type(model), "model_fields", {}).get(name)
        return info is not None and getattr(model, name) != info.get_default(call_default_factory=True)

    @property
    def debugging(self) -> Debug | None:
        """The long form of `debug`, or None."""
        if isinstance(self.debug, Debug):
            return self.debug
        return Debug() if self.debug else None

    @model_validator(mode="after")
    def _one_list(self) -> Profile:
        listed = [name for name in TARGET_FIELDS if getattr(self, name) is not None]
        if len(listed) > 1:
            message = f"{' and '.join(f'`{name}`' for name in listed)} say the same thing"
            raise wrong(message, "keep one", listed[-1])
        # Otherwise two fields could request different versions of one component.
        for name in self.components:
            if getattr(self, name, None) is not None:
                raise wrong(f"`{name}` is in the profile already", "keep one", "components", name)
        return self


_DEVICE_FIELDS = ("gpus", *TARGET_FIELDS)


def json_schema(names: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the profile's JSON Schema, for editors.

    Editors suggest the `names` of a field, but accept other names too.
    """
    schema = Profile.model_json_schema()
    for field, known in (names or {}).items():
        for arm in schema["properties"].get(field, {}).get("anyOf", ()):
            text = arm.get("items", arm)
            if "pattern" in text:
                # No `enum`: for a wrong name, editors would show all names instead of the pattern.
                text["examples"] = list(known)
    # A profile that extends another profile may leave the required fields to that profile.
    required = schema.pop("required")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "urn:tfdock:profile:1",
        **schema,
        "title": "tfdock profile",
        "anyOf": [{"required": required}, {"required": ["extends"]}],
    }


def read(text: str, file: str, others: Mapping[str, str] | None = None) -> tuple[Profile, yaml_nodes.Node]:
    """Read a profile. `others` maps the name of each extended profile, as written, to its text.

    Returns the profile and the merged document, whose nodes have the line of each value. Raises ProfileError with all
    problems at once.
    """
    document = merged(text, file, others or {})
    return checked(Profile, document, file), document


def checked(model: type[_R], document: yaml_nodes.Node, file: str) -> _R:
    """Return a document as a value of that type. Raises ProfileError with all problems, each with its position."""
    if issubclass(model, Profile):
        _check_lengths(document, file)
    # Find these before pydantic does: pydantic would only say that a string is expected, not how to write it.
    problems = _unquoted_texts(model, document, file)
    flagged = {problem.field for problem in problems}
    try:
        record = model.model_validate(document.value)
    except ValidationError as error:
        # Of a union's findings, only the first at each place is kept. So our own, most helpful findings come first,
        # and "should be a map" comes last.
        items = sorted(error.errors(include_url=False), key=lambda item: _RANK.get(item["type"], 1))
        # Only the first: a text of 256 KiB may have 20,000 mistakes, and the search for a similar word is slow.
        complaints = [_problem(model, item, document, file) for item in items[: MOST_PROBLEMS + 1]]
        # One message for each mistake: pydantic reports one error for each type of a union.
        problems = _without_echoes([*problems, *(item for item in complaints if item.field not in flagged)])
        # From top to bottom, as people correct a file.
        raise ProfileError(*sorted(problems, key=lambda item: (item.line or 0, item.column or 0))) from error
    if problems:
        raise ProfileError(*problems)
    return record


def extended_by(text: str, file: str) -> yaml_nodes.Node | None:
    """Return the node of a profile's `extends:`, which names a file; None without `extends:`."""
    node = yaml_nodes.parse(text, file).entries.get("extends")
    return node if node and node.kind == "text" else None


def merged(text: str, file: str, others: Mapping[str, str], seen: tuple[str, ...] = ()) -> yaml_nodes.Node:
    """Return a profile's document merged over the profiles in `others` that it extends; raises ProfileError."""
    node = yaml_nodes.parse(text, file)
    if node.kind != "map":
        message = f"a profile is a map of `name: value` lines, this is a {node.kind}"
        fix = 'start with `schema: 1` and `tensorflow: "2.18.0"`'
        raise ProfileError(node.problem(file, "profile-not-a-map", message, fix))
    # Users sometimes give a matrix instead of a profile. Without this check, every key would be reported as unknown.
    axes = node.entries.get("axes")
    if axes is not None:
        message = "this is a matrix, not a profile: it has `axes`"
        fix = "use it with `tfdock matrix` or `tfdock build --matrix`"
        raise ProfileError(axes.problem(file, "profile-is-matrix", message, fix))
    parent = node.entries.get("extends")
    if parent is None or parent.kind != "text":
        return node
    # A circle through another name of a file is not recognised, so the limit ends it. Options extend a whole chain.
    if parent.raw in seen or len(seen) > MAX_EXTENDS:
        raise extends_too_far(parent, file, circle=parent.raw in seen)
    if parent.raw not in others:
        message = f"the profile `{parent.raw}` does not exist"
        fix = "the path is relative to the profile with `extends:`"
        raise ProfileError(parent.problem(file, "profile-not-found", message, fix, field="extends"))
    base = merged(others[parent.raw], parent.raw, others, (*seen, parent.raw))
    return overlaid(base, node)


def extends_too_far(parent: yaml_nodes.Node, file: str, *, circle: bool = False) -> ProfileError:
    """Return the error for a circle of `extends`, or a chain that is too long."""
    how = f"`{parent.raw}` extends itself" if circle else f"more than {MAX_EXTENDS} profiles deep"
    message = f"`extends:` forms a circle or a chain that is too long: {how}"
    fix = "remove `extends:` from one profile of the chain"
    return ProfileError(parent.problem(file, "profile-extends-cycle", message, fix, field="extends"))


def overlaid(base: yaml_nodes.Node, node: yaml_nodes.Node) -> yaml_nodes.Node:
    """Return `base` changed by `node`: maps merge, other values replace. GPUs or targets replace both in `base`."""
    entries = dict(base.entries)
    # Targets and GPUs belong together ("compile these, serve those"). A child with one of them replaces both.
    if any(name in node.entries for name in _DEVICE_FIELDS):
        entries = {key: child for key, child in entries.items() if key not in _DEVICE_FIELDS}
    for key, child in node.entries.items():
        old = entries.get(key)
        entries[key] = overlaid(old, child) if old and old.kind == child.kind == "map" else child
    return yaml_nodes.Node(
        kind="map",
        line=node.line,
        column=node.column,
        file=node.file,
        entries=entries,
        keys={**base.keys, **node.keys},
    )


# --- from pydantic's findings to ours -----------------------------------------------------------------------------


def _check_lengths(document: yaml_nodes.Node, file: str) -> None:
    """Raise ProfileError for the first list or map that is too long."""
    nodes: list[tuple[_Path, yaml_nodes.Node]] = [((), document)]
    for path, node in nodes:
        children: list[tuple[str | int, yaml_nodes.Node]] = [*node.entries.items(), *enumerate(node.items)]
        # Unknown names at the top level are reported one by one instead.
        if path and len(children) > _MOST_ENTRIES:
            name = _dotted(path)
            message = f"`{name}` has {len(children):,} entries; at most {_MOST_ENTRIES} are allowed"
            raise ProfileError(node.problem(file, "profile-bad-value", message, "name fewer", field=name))
        nodes += [((*path, key), child) for key, child in children]


def unquoted_fields(text: str) -> list[str]:
    """Return the fields of a profile's text that have a number but need text, such as `python: 3.10`."""
    found = _unquoted_texts(Profile, yaml_nodes.parse(text, ""), "")
    return [problem.field or "" for problem in found]


def _unquoted_texts(model: type[BaseModel], document: yaml_nodes.Node, file: str) -> list[Problem]:
    """Return problems for text written as YAML numbers, the most common mistake: YAML reads 3.10 as 3.1."""
    problems = []
    for path, marks in _text_paths(model, document, ()):
        node = document.at(path)
        if node.kind not in ("number", "date"):
            continue
        is_version = any(isinstance(mark, _IsVersion) for mark in marks)
        name, kind = _dotted(path), f"a {node.kind}"
        # Show the number that YAML read only if it differs from the written text.
        lost = f" (the number {node.value})" if str(node.value) != node.raw else ""
        key = f"{path[-1]}: " if isinstance(path[-1], str) else ""
        code = "version-not-text" if is_version else "profile-bad-value"
        message = f"`{name}` is {kind}{lost}, but {'versions are' if is_version else 'must be'} text"
        fix = _as_text(node.raw, marks) or f'write it in quotes: `{key}"{node.raw}"`'
        problems.append(node.problem(file, code, message, fix, field=name))
    return problems


def _as_text(raw: str, marks: Sequence[Any]) -> str:
    """Return the fix for a number that would be invalid even in quotes; else ""."""
    try:
        for mark in marks:
            if isinstance(mark, Pattern):
                mark.check(raw)
            elif isinstance(mark, AfterValidator):
                mark.func(raw)  # type: ignore[call-arg]
    except PydanticCustomError as error:
        return str((error.context or {})["fix"])
    except ValueError as error:
        return f"write {str(error).partition(' does not look like ')[2]}"
    return ""


_Path = tuple[str | int, ...]


def _text_paths(
    annotation: Any, node: yaml_nodes.Node, path: _Path, *marks: Any
) -> Iterator[tuple[_Path, tuple[Any, ...]]]:
    """Yield the path of each scalar for which the type requires text, with the type's further checks (`marks`)."""
    arms = [*_arms(annotation, *marks)]
    # `jobs: 8` is valid, although the field also accepts the text `auto`.
    if node.kind == "number" and any(arm in (int, bool) for arm, _ in arms):
        return
    for arm, arm_marks in arms:
        if node.kind in ("map", "list"):
            for inner, child, step, inner_marks in _inside(arm, node):
                yield from _text_paths(inner, child, (*path, step), *inner_marks)
        elif arm is str:
            yield path, arm_marks


def _arms(annotation: Any, *marks: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the types that a field may have, each with its further checks (`marks`)."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _arms(arguments[0], *marks, *arguments[1:])
    elif origin in (Union, types.UnionType):
        for arm in arguments:
            yield from _arms(arm, *marks)
    else:
        yield annotation, marks


def _inside(annotation: Any, node: yaml_nodes.Node) -> Iterator[tuple[Any, yaml_nodes.Node, str | int, list[Any]]]:
    """Yield type, node, key or index, and checks of each value in a map or list, as far as the type fits."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        yield from ((arguments[0], item, index, []) for index, item in enumerate(node.items))
    elif origin is dict:
        yield from ((arguments[1], child, key, []) for key, child in node.entries.items())
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            child = node.entries.get(info.alias or name)
            if child is not None:
                yield info.annotation, child, info.alias or name, info.metadata


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the records among the types of a field, or of its items."""
    for arm, _ in _arms(annotation):
        if isinstance(arm, type) and issubclass(arm, BaseModel):
            yield arm
        elif get_origin(arm) is list:
            yield from _models(*get_args(arm))


def _problem(model: type[BaseModel], item: Any, document: yaml_nodes.Node, file: str) -> Problem:
    kind, context = item["type"], item.get("ctx", {})
    path = (*_path(item, document), *context.get("where", ()))
    node = document.at(path)
    name = _dotted(path)
    line, column = node.line, node.column
    if kind == "extra_forbidden":
        # An unknown key has no node in a record, but a place in its map.
        line, column = document.at(path[:-1]).keys.get(str(path[-1]), (line, column))
        known = _known_keys(model, path[:-1])
        # Users write `compute-capabilities` for `compute_capabilities`.
        word = str(path[-1]).lower().replace("-", "_")
        longer = [key for key in known if key.startswith(word)]
        near = longer or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
        code, message = "profile-unknown-key", f"unknown key `{name}`"
        inner = _homes(model, str(path[-1])) if len(path) == 1 else []
        fix = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        if inner:
            home = inner[0].strip("`")
            fix = f"it belongs in {joined(inner)}: `{home}: {{{path[-1]}: …}}`, or `--set {home}.{path[-1]}=…`"
    elif kind == "missing":
        examples = {"schema": "schema: 1", "tensorflow": 'tensorflow: "2.18.0"', "release": 'release: "2.18.0"'}
        code, message = "profile-missing-key", f"`{name}` is missing"
        fix = f"add `{examples.get(str(path[-1]), f'{path[-1]}: …')}`"
    else:
        plain = item["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
        # Pydantic quotes the values that it takes with apostrophes.
        complaint = _MESSAGES.get(kind, plain.replace("'", "`") if kind == "literal_error" else plain)
        complaint += ", or a list" if kind == "literal_error" and _takes_lists(model, path) else ""
        code, message = "profile-bad-value", f"`{name}`: {complaint}" if name else complaint
        fix = context.get("fix") or _fix(model, item, node, path)
    return Problem(code, message, fix, file=node.file or file, line=line, column=column, field=name or None)


def _path(item: Any, document: yaml_nodes.Node) -> _Path:
    """Return the path of a finding in the document.

    Pydantic's own path also names arms of unions (`literal['auto']`).
    """
    path: list[str | int] = []
    node: yaml_nodes.Node | None = document
    for part in item["loc"]:
        if node is None:
            break
        if isinstance(part, int):
            path.append(part)
            node = node.items[part] if part < len(node.items) else None
        elif part in node.entries:
            path.append(part)
            node = node.entries[part]
    return (*path, item["loc"][-1]) if item["type"] == "missing" else tuple(path)


# Lower is better. All other kinds of findings are 1.
_RANK = {"tfdock": 0, "model_type": 2}
_MESSAGES = {
    "string_type": "should be text",
    "list_type": "should be a list",
    "dict_type": "should be a map of `name: value` lines",
    "model_type": "should be a map of `name: value` lines",
    "bool_type": "should be `true` or `false`",
    "too_long": "has too many entries: at most 32 are allowed",
    "int_type": "should be a whole number",
}


def _fix(model: type[BaseModel], item: Any, node: yaml_nodes.Node, path: _Path) -> str:
    kind = item["type"]
    if kind == "literal_error":
        # `schema: "1"` is text, but the field requires a number.
        if node.kind == "text" and node.raw == item["ctx"]["expected"]:
            return f"write it without quotes: `{node.raw}`"
        near = difflib.get_close_matches(node.raw, re.findall(r"'([^']+)'", item["ctx"]["expected"]), n=1)
        listed = f", or write a list: `[{_listed(node.raw.lower())}]`" if _takes_lists(model, path) else ""
        known = item["ctx"]["expected"].replace("'", "`")
        return f"did you mean `{near[0]}`?" if near else f"use {known}{listed}"
    if kind == "list_type":
        return f"write a list: `[{_listed(node.raw)}]`" if node.raw else "write a list: `[a, b]`"
    if kind == "bool_type":
        return "write `true` or `false`"
    if kind in ("dict_type", "model_type"):
        return f"write `{path[-1]}: {{{_known_keys(model, path)[0] if kind == 'model_type' else 'name'}: …}}`"
    name, info = _deepest(model, path)
    if name in ("tensorflow", "release") and re.fullmatch("[A-Za-z-]+", node.raw or ""):  # nightly, latest, master
        build = 'tensorflow: {release: "2.21", ref: master}'
        return f"name a release; for a branch, also the release whose rules apply: `{build}`"
    if info is None or not info.description:
        return "correct the value"
    if not info.examples:
        return f"write {info.description[0].lower()}{info.description[1:]}"
    return f"write it like `{name}: {_as_yaml(info.examples[0])}`"


def _as_yaml(value: object) -> str:
    """Return a value as people write it on a line: words bare, other text in quotes."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    text = str(value)
    return text if isinstance(value, int) or re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text) else f'"{text}"'


def _takes_lists(model: type[BaseModel], path: _Path) -> bool:
    """Return whether the field at the top takes a list beside fixed words."""
    info = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return info is not None and any(get_origin(arm) is list for arm, _ in _arms(info.annotation))


def _listed(raw: str) -> str:
    """Return the items of a list that was written as one text: capabilities as a list needs them."""
    items = [item for item in re.split(r"[\s,;[\]]+", raw) if item]
    # NVIDIA writes capabilities as `8.6`; in a profile they begin with `sm_`.
    dotted = re.compile(r"(\d{1,2})\.(\d)")
    return yaml_nodes.shown(
        ", ".join(dotted.sub(r"sm_\1\2", item) if dotted.fullmatch(item) else item for item in items)
    )


def _deepest(model: type[BaseModel], path: _Path) -> tuple[str, FieldInfo | None]:
    """Return the last field of a model along a path, with its name. Below are only items or the user's keys."""
    models: list[type[BaseModel]] = [model]
    name, deepest = "", None
    for part in path:
        info = next((model.model_fields[str(part)] for model in models if str(part) in model.model_fields), None)
        if info is not None:
            name, deepest = str(part), info
            models = list(_models(info.annotation))
    return name, deepest


def field_named(key: str) -> str:
    """Return the full dotted name of a field: `resources.memory` for `memory`; empty if no field has this name."""
    homes = _homes(Profile, key)
    return key if key in Profile.model_fields else f"{homes[0].strip('`')}.{key}" if homes else ""


def _homes(model: type[BaseModel], key: str) -> list[str]:
    """Return the fields, in backquotes, whose maps have such a key."""
    fields = model.model_fields.items()
    return [f"`{name}`" for name, info in fields if any(key in one.model_fields for one in _models(info.annotation))]


def _known_keys(model: type[BaseModel], path: _Path) -> list[str]:
    for part in path:
        info = model.model_fields.get(str(part))
        model = next(_models(info.annotation), model) if info else model
    return [info.alias or name for name, info in model.model_fields.items()]


def _without_echoes(problems: list[Problem]) -> list[Problem]:
    """Return only the deepest problem of each place: pydantic reports an error for each type of a union."""
    best: dict[str, Problem] = {}
    for problem in problems:
        best.setdefault(problem.field or "", problem)
    fields = sorted(best)

    def has_deeper(field: str) -> bool:
        # In a sorted list, fields with the same beginning are neighbours.
        places = ((bisect_left(fields, start), start) for start in (f"{field}.", f"{field}["))
        return any(place < len(fields) and fields[place].startswith(start) for place, start in places)

    return [problem for field, problem in best.items() if not has_deeper(field)]


def _dotted(path: _Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
