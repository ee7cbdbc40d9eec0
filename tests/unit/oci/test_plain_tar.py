"""Headers of tars: the quick way writes what the standard library writes."""

from __future__ import annotations

import io
import tarfile

import pytest

from tfdock.oci.plain_tar import LARGEST_PLAIN, archive, members, plain_header


@pytest.mark.parametrize("size", [0, 1, 511, 512, 1 << 20, LARGEST_PLAIN])
@pytest.mark.parametrize("name", ["ac_" + "0" * 64, f"cas/0f/{'0f' * 32}", "x" * 100])
def test_a_plain_header_is_that_of_the_standard_library(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    assert plain_header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_what_is_written_is_read_and_every_tar_reads_it() -> None:
    files = {"b/c/long-" + "x" * 200: b"1" * 513, "a": b"", "b/d": b"2" * 512}
    written = archive(files)
    assert dict(members(written, lambda _: True)) == files
    with tarfile.open(fileobj=io.BytesIO(written)) as tar:
        assert [member.name for member in tar] == ["a", "b", "b/c", "b/c/long-" + "x" * 200, "b/d"]
