"""A wheel as a whole: its libraries, its own account of its build, and texts that should not be in it."""

from __future__ import annotations

import io
import shlex
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tfdock.wheel.build_info import HEADERS, PATHS, build_info, cuda_version
from tfdock.wheel.inspection import Inspection, inspect_wheel
from tfdock.wheel.wheel_file import install_command

from ..small_wheels import NAME, wheel_of

# An ELF header and nothing else: a library that is damaged, but one.
ELF = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


def inspected(files: Mapping[str, bytes], name: str = NAME, traces: tuple[bytes, ...] = ()) -> Inspection:
    return inspect_wheel(io.BytesIO(wheel_of(files)), name, traces=traces)


def test_what_the_documents_say_comes_with_it() -> None:
    found = inspected({})
    assert (found.wheel.name, found.wheel.version, found.wheel.python_tag) == ("tensorflow", "2.18.0", "cp311")
    assert found.wheel.record_ok
    assert found.metadata.provides_extra == ("and-cuda",)
    assert found.metadata.requires_dist[1].startswith("nvidia-cudnn-cu12==9.3.0.75")
    assert found.libraries == ()
    assert found.build_info is None


def test_a_library_is_known_by_its_first_bytes_and_not_by_its_name() -> None:
    found = inspected({"b/tool": ELF, "a/plain.so": b"no library", "a/empty.so": b"", "a/lib.so": ELF})
    assert [one.path for one in found.libraries] == ["a/lib.so", "b/tool"]
    assert found.libraries[0].machine == "x86_64"
    assert found.libraries[0].problems == ()


def test_libraries_of_other_systems_are_named_and_not_read() -> None:
    windows, mac = b"MZ\x90\0\3\0\0\0", b"\xcf\xfa\xed\xfe\7\0\0\1"
    both = b"\xca\xfe\xba\xbe\0\0\0\2"
    others = {"a/text": b"MZ is a text", "a/short": b"MZ", "a/X.class": both}
    found = inspected({"a/x.pyd": windows, "a/y.so": mac, "a/z.so": both, **others})
    assert (found.libraries, dict(found.unread)) == (
        (), {"a/x.pyd": "Windows", "a/y.so": "macOS", "a/z.so": "macOS"}
    )  # fmt: skip


def test_a_wheel_that_was_given_other_tags_by_renaming_is_read_and_it_is_said() -> None:
    found = inspected({}, name=NAME.replace("linux", "manylinux2014"))
    assert found.wheel.platform_tag == "manylinux2014_x86_64"
    assert "WHEEL has the tags cp311-cp311-linux_x86_64" in found.wheel.tag_problem
    assert not inspected({}).wheel.tag_problem


def test_texts_are_found_in_every_file_also_where_they_lie_across_two_blocks() -> None:
    across = b"x" * ((1 << 20) - 4) + b"/tf/tensorflow" + b"y" * 10
    files = {
        "a.py": b"path = '/tf/tensorflow/x'",
        "b.bin": across,
        "c.txt": b"/tf/tensor flow",
        "d.so": ELF + b"/tf/out",
    }
    found = inspected(files, traces=(b"/tf/tensorflow", b"/tf/out", b"/nowhere"))
    assert found.traces == {"/tf/tensorflow": ("a.py", "b.bin"), "/tf/out": ("d.so",), "/nowhere": ()}
    assert inspected(files).traces == {}


def test_progress_counts_every_byte_that_is_unpacked() -> None:
    files = {"a.py": b"one", "b.bin": bytes(9 << 20), "c.so": ELF}
    wheel, counts = wheel_of(files), list[int]()
    inspect_wheel(io.BytesIO(wheel), NAME, progress=counts.append)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert sum(counts) == sum(member.file_size for member in archive.infolist())


# --- build_info.py ------------------------------------------------------------------------------------------------

MODERN = b'''
"""Auto-generated module providing information about the build."""
import collections

build_info = collections.OrderedDict([('cpu_compiler', '/usr/bin/clang'), ('cuda_version', '12.5.1'),
  ('cuda_compute_capabilities', ['sm_60', 'compute_90']), ('is_cuda_build', True)])
'''
# The form of TensorFlow 2.3 and of the years before.
PLAIN = b"build_info = {'cuda_version': '10.1', 'is_rocm_build': False}\n"
OLD = b"is_rocm_build = False\nis_cuda_build = True\ncuda_version = '10.0'\nnvcuda_dll_name = None\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            MODERN,
            {
                "cpu_compiler": "/usr/bin/clang",
                "cuda_version": "12.5.1",
                "cuda_compute_capabilities": ["sm_60", "compute_90"],
                "is_cuda_build": True,
            },
            id="OrderedDict",
        ),
        pytest.param(PLAIN, {"cuda_version": "10.1", "is_rocm_build": False}, id="dict"),
        pytest.param(OLD, {"is_rocm_build": False, "is_cuda_build": True, "cuda_version": "10.0"}, id="variables"),
        pytest.param(b"build_info = dict({'a': 1})", {"a": 1}, id="dict()"),
        pytest.param(b"build_info = make()", None, id="computed"),
        pytest.param(b"build_info = {'a': open('/etc/passwd').read(), 'b': 1}", {"b": 1}, id="computed entry"),
        pytest.param(b"build_info = [", None, id="no Python"),
        pytest.param(b"\xff\xfe\x00", None, id="no text"),
        pytest.param(b"(" * 5000, None, id="deep"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b"a = 1if 1 else 2\nb = 'c\\d'", {"b": "c\\d"}, id="Python warns of it"),
        pytest.param(b"a = '\\ud800'\nb = 0x" + b"f" * 5000 + b"\nc = 1e999\nd = '\\x1b[2J'", None, id="unspeakable"),
        pytest.param(b"build_info = {'\\x1b[2J': 1, '\\ud800': 2, 'c': 3}", {"c": 3}, id="unspeakable names"),
    ],
)
def test_build_info_is_read_and_never_run(source: bytes, expected: object) -> None:
    assert build_info(source) == expected


@pytest.mark.parametrize(
    ("header", "version"),
    [
        (b'#ifndef X\n#define TF_CUDA_VERSION "12.5.1"\n', "12.5.1"),
        (b"#define CUDA_VERSION 12050\n", "12.5"),
        (b"#define CUDA_VERSION 13000 /* so */\n", "13.0"),
        (b"#define  CUDA_VERSION\t10020\n", "10.2"),
        (b"#define CUDA_VERSION_MIN 12050\n", ""),
        (b'#define TF_CUDA_VERSION ""\n', ""),
        (b"// CUDA_VERSION 12050\n", ""),
        (b"", ""),
    ],
)
def test_the_cuda_of_the_compilation_is_read_from_a_header(header: bytes, version: str) -> None:
    assert cuda_version(header) == version


def test_the_more_exact_header_in_a_wheel_counts() -> None:
    exact, other = HEADERS
    members = {other: b"#define CUDA_VERSION 12040\n", exact: b'#define TF_CUDA_VERSION "12.4.1"\n'}
    assert inspected(members).header_versions == {"cuda": "12.4.1"}
    assert inspected({other: members[other]}).header_versions == {"cuda": "12.4"}
    assert inspected({}).header_versions == {}


@pytest.mark.parametrize("path", PATHS)
def test_build_info_is_taken_from_its_place_in_the_wheel(path: str) -> None:
    assert inspected({path: PLAIN}).build_info == {"cuda_version": "10.1", "is_rocm_build": False}
    assert inspected({f"elsewhere/{path}": PLAIN}).build_info is None


@pytest.mark.parametrize(
    ("version", "extra"), [('"12.5.1"', "[and-cuda]"), ('"13.0.0"', ""), ('"1"', ""), (None, "")]
)
def test_the_install_command_has_the_extra_only_for_the_wheels_own_cuda(
    version: str | None, extra: str, tmp_path: Path
) -> None:
    files = {PATHS[0]: f'build_info = {{"cuda_version": {version}}}\n'.encode()} if version else {}
    folder = tmp_path / "a wheel's folder"
    folder.mkdir()
    (folder / NAME).write_bytes(wheel_of(files))
    assert shlex.split(install_command(folder / NAME)) == ["pip", "install", f"{folder / NAME}{extra}"]


def test_the_install_command_of_a_wheel_that_cannot_be_read_has_no_extra(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"no wheel")
    assert install_command(tmp_path / NAME) == f"pip install {tmp_path / NAME}"
    assert install_command(tmp_path / "none.whl") == f"pip install {tmp_path}/none.whl"
