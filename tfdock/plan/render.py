"""Turn a `Resolution` into a `BuildContext`: the Dockerfile and the files that it copies, with equal bytes each time.

Templates contain the layout; this module makes the decisions. Template values have narrow types and are quoted by
filters. `finalize` refuses characters that could end a line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tfdock.errors import ProfileError
from tfdock.knowledge.rows import PACKAGE, REQUIREMENT
from tfdock.resolve.resolution import Resolution
from tfdock.types import Version

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

Filters = tuple[tuple[str, Callable[..., str]], ...]
_BAZEL_RELEASES = "https://github.com/bazelbuild/bazel/releases/download"
#: Where bazelisk downloads releases (bazelbuild/bazelisk, repositories/gcs.go).
_BAZELISK = "https://releases.bazel.build"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """A build context: path -> bytes. A local checkout belongs in `source/`."""

    files: Mapping[str, bytes]

    def executable(self, path: str) -> bool:
        """Return whether a file of the context is executable."""
        return path.endswith(".sh")


def render(resolution: Resolution, templates: Mapping[str, str]) -> BuildContext:
    """Make the context. `templates` maps a path below `dockerfiles/` to the template's text.

    Raises ProfileError if a knowledge row names an unknown template.
    """
    _check_templates(resolution, templates)
    environment = (f"{name}={_one_line(value)}\n" for name, value in sorted(resolution.environment.items()))
    files = {
        "Dockerfile": from_template(templates, "Dockerfile.j2", _values(resolution)),
        "tfdock/environment": "".join(environment).encode(),
    }
    needed = ["toolchain.sh", "holds.sh", "pins.py", "phase.sh", "unprivileged.py", "configure.sh"]
    if resolution.source.kind != "path":
        needed.append("source.sh")
    if resolution.edits:
        needed.append("edit.py")
        edits = [edit.model_dump(include={"edit", "file", "find", "put"}) for edit in resolution.edits]
        files["tfdock/edits.json"] = json.dumps(edits, indent=1, sort_keys=True).encode() + b"\n"
    if resolution.source.patches:
        needed.append("patch.sh")
    if resolution.archives:
        needed.append("archive.sh")
    if resolution.interpreter:
        needed.append("interpreter.sh")
    files |= {f"tfdock/{name}": templates[f"scripts/{name}"].encode() for name in needed}
    for number, (name, patch) in enumerate(resolution.source.patches.items(), start=1):
        # The number keeps the order of the patches. Other characters of a name become `_`.
        files[f"tfdock/patches/{number:03}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"] = patch
    # Sorted, so that the order of the files does not depend on the order of this code.
    return BuildContext(files=dict(sorted(files.items())))


def toolchain_inputs(resolution: Resolution) -> str:
    """Return a hash of the image's inputs without the source: equal for builds with the same toolchain."""
    values = {name: value for name, value in _values(resolution).items() if not name.startswith("source")}
    # Only later stages use these values. Without them, equal toolchains have the same hash.
    del values["build_id"], values["edits"], values["patches"]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def from_template(
    templates: Mapping[str, str], name: str, values: Mapping[str, object], filters: Filters = ()
) -> bytes:
    """Return a file rendered from the named template with these values; `filters` are extra filters, by name."""
    # A tuple, because the cache of environments needs a key that can be hashed.
    text = _environment(tuple(sorted(templates.items())), filters).get_template(name).render(values)
    # At most one blank line in a row, and none at the end.
    return (re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n").encode()


def _check_templates(resolution: Resolution, templates: Mapping[str, str]) -> None:
    for folder, name in (("base", resolution.image.template), ("accelerator", resolution.accelerator.template)):
        if name and f"{folder}/{name}.j2" not in templates:
            known = [path[len(folder) + 1 : -3] for path in sorted(templates) if path.startswith(f"{folder}/")]
            message = f"a knowledge row names the template `{name}`, which is not in `dockerfiles/{folder}/`"
            raise ProfileError.of("knowledge-row", message, f"use a known template: {', '.join(known)}")


def bazel_address(resolution: Resolution) -> str:
    """Return the address of Bazel for the image build: its installer, or bazelisk's file in TensorFlow's images.

    Empty if the profile's own base has Bazel.
    """
    if resolution.image.template == "own":
        return ""
    if resolution.image.template != "sig-build":
        return _installer(resolution)
    machine = {"aarch64": "arm64"}.get(resolution.image.machine, resolution.image.machine)
    version = resolution.bazel
    return f"{_BAZELISK}/{version}/release/bazel-{version}-linux-{machine}"


def _installer(resolution: Resolution) -> str:
    # Bazel publishes installers for x86_64 only. So on another machine the download fails.
    installer = f"bazel-{resolution.bazel}-installer-linux-{resolution.image.machine}.sh"
    return f"{_BAZEL_RELEASES}/{resolution.bazel}/{installer}"


def _values(resolution: Resolution) -> dict[str, object]:
    image, source, held = resolution.image, resolution.source, _held(resolution)
    return {
        "build_id": resolution.build_id,
        "base": resolution.base,
        "template": image.template,
        "accelerator_template": resolution.accelerator.template,
        "packages": image.packages,
        # A debug build is for use with a debugger: `tfdock shell --debug` opens the image with the debugger.
        "debugger": ("gdb",) if resolution.debug and image.template != "own" else (),
        "pip": image.pip,
        "interpreter": resolution.interpreter,
        "archives": _archives(resolution),
        "bazel": resolution.bazel,
        "bazel_url": _installer(resolution),
        "of_repositories": list(resolution.of_repositories),
        "cachebusters": ",".join(resolution.cachebusters),
        "tools": [str(len(held)), *held, *_tools(resolution)],
        "paths": dict(resolution.paths),
        "source_kind": source.kind,
        "source_location": source.location,
        "source_sha256": source.sha256 or "",
        "source_ref": source.refs[0] if source.refs else "",
        "source_commit": source.commit or "",
        "edits": bool(resolution.edits),
        "patches": bool(source.patches),
    }


def _archives(resolution: Resolution) -> list[list[str]]:
    """Return the arguments of `archive.sh` for each archive of the image.

    Archives are unpacked into the toolkit's folder.
    """
    prefix = resolution.paths.get(resolution.accelerator.toolkit, "")
    return [
        [row.url, row.sha256, prefix, *(word.format_map({"prefix": prefix}) for word in row.arguments)]
        for row in resolution.archives
    ]


def _held(resolution: Resolution) -> list[str]:
    """Return the arguments of `holds.sh`, `TITLE=VERSION=COMMAND`, for each part with a promised version."""
    accelerator = resolution.accelerator
    asked = {choice.field: choice.value for choice in resolution.choices if choice.source == "profile"}
    folders = {f"{name}_path": path for name, path in resolution.paths.items()}
    host = resolution.host_compiler
    version = asked.get("host_compiler", "").partition(" ")[2] or resolution.image.compilers.get(host, "")
    parts = [
        (accelerator.title_of(name), resolution.components.get(name, ""), words)
        for name, words in accelerator.versions.items()
    ]
    parts += [(host, version, (f"{{{host}_path}}", "-dumpversion"))]
    # For later releases, Bazel downloads the Python.
    if not resolution.release.pythons_closed:
        script = "import sys; print('%d.%d' % sys.version_info[:2])"
        parts += [("Python", resolution.python, ("{python_path}", "-c", script))]
    held = []
    for title, promised, words in parts:
        # A part that the release downloads itself has no path in the image.
        with contextlib.suppress(KeyError):
            command = shlex.join(word.format_map(folders) for word in words)
            held += [f"{title}={Version(promised).minor}={command}"] if promised else []
    return held


def _tools(resolution: Resolution) -> list[str]:
    """Return the programs in the image whose bytes identify the toolchain."""
    paths = resolution.paths
    tools = {paths[name] for name in ("clang", "gcc", "python") if name in paths}
    folders = {f"{name}_path": path for name, path in paths.items()}
    for tool in resolution.accelerator.tools:
        # If a release downloads its toolkit, the image contains no toolkit.
        with contextlib.suppress(KeyError):
            tools.add(tool.format_map(folders))
    return sorted(tools)


# --- Jinja --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)  # compile the templates once for all profiles
def _environment(templates: tuple[tuple[str, str], ...], filters: Filters = ()) -> ImmutableSandboxedEnvironment:
    # Imported here: a command that only checks a profile renders nothing.
    from jinja2 import DictLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=DictLoader(dict(templates)),
        # A missing name is an error: an empty word could change the command.
        undefined=StrictUndefined,
        # Escaping is for HTML. Each filter quotes for the program that reads its output.
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "json_words": _json_words,
        "shell_word": lambda text: shlex.quote(_one_line(str(text))),
        "shell_words": lambda words: " ".join(shlex.quote(_one_line(str(word))) for word in words),
        "quoted": _quoted,
        "package_words": lambda words: _words(words, PACKAGE),
        "requirement_words": lambda words: _words(words, REQUIREMENT),
    } | dict(filters)
    return environment


def _finalize(value: object) -> object:
    if value is None:
        raise ValueError("a template printed nothing in place of a value")
    # Included templates arrive here as markup and may have several lines; all other values have one line.
    return value if isinstance(value, bool | int) else _one_line(str(value))


def _one_line(text: str) -> str:
    # A line break could begin another instruction.
    if not text.isprintable():
        raise ValueError(f"a value holds a control character: {text!r}")
    return text


def _json_words(words: Sequence[str]) -> str:
    """Return words of an exec-form instruction without the brackets: no shell reads them."""
    # The builder reads the exec form as JSON.
    return ", ".join(json.dumps(_one_line(word)) for word in words)


def _quoted(text: str) -> str:
    """Return a value of ENV or LABEL in quotes, so that the builder does not expand it."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", _one_line(text)) + '"'


def _words(words: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return words that need no quoting, sorted."""
    for word in words:
        if not pattern.match(word):
            raise ValueError(f"not a package: {word!r}")
    # Sorted, because another order would give another image layer.
    return " ".join(sorted(words))
