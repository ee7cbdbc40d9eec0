"""`archive.sh` in a real image: what it downloads is checked, and put where a build looks for it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdock.knowledge import loader

from .conftest import Workshop
from .harness import file_server

pytestmark = pytest.mark.engine

PREFIX = "/usr/local/kit-1.0"
# As toolkits' own installers: they print, leave a log that the next one falls over, and bring a stub of the driver.
INSTALLER = f"""#!/bin/sh
[ ! -e /tmp/cuda-installer.log ] || exit 139
[ "$1 $2" = "--silent --to={PREFIX}" ] || exit 1
mkdir -p {PREFIX}/bin {PREFIX}/lib64/stubs
touch {PREFIX}/bin/compiler {PREFIX}/lib64/stubs/libcuda.so /tmp/cuda-installer.log
"""
LIBRARY = {"x/include/lib.h": b"1", "x/lib64/lib.so.7": b"2", "x/lib64/lib.a": b"3"}
NEWER_LIBRARY = {"y/include/new.h": b"1", "y/lib/new.so.8": b"2"}


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


class Shop:
    """A file server, and image builds that download from it."""

    def __init__(self, workshop: Workshop, url: str, folder: Path) -> None:
        self.sdk, self.url, self.folder = workshop.sdk, url, folder
        self.tag = f"tfdock-test/archives:{secrets.token_hex(4)}"
        mirror = os.environ.get("TFDOCK_REGISTRY_MIRROR", "docker.io=docker.io").partition("=")[2]
        self.base = f"{mirror}/tensorflow/build:99.18-python3.11"

    def words(self, name: str, data: bytes, *arguments: str) -> list[str]:
        """Offer an archive; what `archive.sh` is to be told of it."""
        (self.folder / name).write_bytes(data)
        return [f"{self.url}/{name}", hashlib.sha256(data).hexdigest(), PREFIX, *arguments]

    def build(self, *steps: list[str], check: str = "true") -> str:
        """Build an image of archive steps; the log. Raises AssertionError with it."""
        run = [f"RUN {json.dumps(['/bin/bash', '/archive.sh', *words])}" for words in steps]
        dockerfile = "\n".join([f"FROM {self.base}", "USER 0", "COPY archive.sh /", *run, f"RUN {check}"])
        context = tar(
            {"Dockerfile": dockerfile.encode(), "archive.sh": loader.templates()["scripts/archive.sh"].encode()}
        )
        lines: Any = self.sdk.build(
            fileobj=io.BytesIO(context), custom_context=True, tag=self.tag, decode=True, rm=True, forcerm=True,
            network_mode=os.environ.get("TFDOCK_NETWORK"), nocache=True,
        )  # fmt: skip
        log = "".join(line.get("stream", "") + line.get("error", "") for line in lines)
        assert "Successfully tagged" in log, log
        return log


@pytest.fixture
def shop(workshop: Workshop, tmp_path: Path) -> Iterator[Shop]:
    with file_server(tmp_path) as url:
        shop = Shop(workshop, url, tmp_path)
        yield shop
    if shop.sdk.images(shop.tag):
        shop.sdk.remove_image(shop.tag)


def test_programs_install_themselves_and_libraries_are_copied_beside_them(shop: Shop) -> None:
    arguments = ("--silent", f"--to={PREFIX}")
    there = ["bin/compiler", "include/lib.h", "include/new.h", "lib64/lib.so.7", "lib64/new.so.8"]
    there.append("lib64/stubs/libcuda.so.1")
    shop.build(
        shop.words("kit.run", INSTALLER.encode(), *arguments),
        shop.words("again.run", INSTALLER.encode(), *arguments),
        shop.words("lib.tgz", tar(LIBRARY, "w:gz")),
        shop.words("new.tar.xz", tar(NEWER_LIBRARY, "w:xz")),
        check=f"cd {PREFIX} && ls -d {' '.join(there)} && test ! -e lib64/lib.a && test ! -e /opt/tfdock/archive"
        f" && grep -qx {PREFIX}/lib64 /etc/ld.so.conf.d/zz-tfdock.conf",
    )


def test_other_bytes_than_expected_stop_the_image(shop: Shop) -> None:
    url, _, *rest = shop.words("lib.tgz", tar(LIBRARY, "w:gz"))
    with pytest.raises(
        AssertionError, match=rf"lib\.tgz has the sha256 [0-9a-f]{{64}}, but {'0' * 64} was expected"
    ) as told:
        shop.build([url, "0" * 64, *rest])
    assert "returned a non-zero code: 65" in str(told.value)


def test_an_archive_that_is_gone_says_so(shop: Shop) -> None:
    with pytest.raises(AssertionError, match=r"cannot download \S+/gone\.tgz") as told:
        shop.build([f"{shop.url}/gone.tgz", "0" * 64, PREFIX])
    assert "returned a non-zero code: 68" in str(told.value)
