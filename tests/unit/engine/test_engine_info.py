"""What an engine says of itself, and the containers that it gets for that."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tfdock.engine.address import EngineAddress
from tfdock.engine.engine_documents import host_config_of
from tfdock.engine.engine_facts import engine_info, quick_facts
from tfdock.engine.engine_machine import caller_user
from tfdock.engine.protocol import ContainerSpec
from tfdock.types import EngineInfo

HERE = EngineAddress("unix:///nowhere/docker.sock", "as given")
ELSEWHERE = EngineAddress("tcp://builder:2376", "as given")
SPEC = ContainerSpec(name="x", image="x", command=("true",), memory=1 << 30, cpus=2.0)


def info_of(address: EngineAddress = HERE, components: str = "Engine", **answer: Any) -> EngineInfo:
    """The facts of an engine with that answer to `/info`."""
    version = {"Version": "28.5.2", "ApiVersion": "1.51", "Components": [{"Name": components}]}
    return engine_info({"NCPU": 4, "MemTotal": 1 << 34, "DockerRootDir": "/data", **answer}, version, address)


ROOTLESS = ["name=seccomp,profile=builtin", "name=rootless"]


@pytest.mark.parametrize(
    ("info", "user", "mode", "label"),
    [
        pytest.param(info_of(SecurityOptions=ROOTLESS), "0:0", "", [], id="rootless"),
        pytest.param(info_of(HERE, "Podman Engine", SecurityOptions=ROOTLESS), "0:0", "", [], id="rootless podman"),
        pytest.param(info_of(SecurityOptions=["name=apparmor", "name=cgroupns"]), "1000:1001", "", [], id="any"),
        pytest.param(info_of(SecurityOptions=["name=userns"]), "1000:1001", "host", [], id="user namespaces"),
        pytest.param(info_of(ELSEWHERE, SecurityOptions=["name=userns"]), "1000:1001", "", [], id="they, elsewhere"),
        pytest.param(info_of(SecurityOptions=["name=selinux"]), "1000:1001", "", ["label=disable"], id="labels"),
        pytest.param(info_of(ELSEWHERE, SecurityOptions=["name=selinux"]), "1000:1001", "", [], id="so, elsewhere"),
    ],
)
def test_a_container_of_the_caller_opens_folders_of_this_machine(
    info: EngineInfo, user: str, mode: str, label: list[str]
) -> None:
    config = host_config_of(SPEC, None, info)
    assert (caller_user(info, 1000, 1001), config.get("userns_mode", "")) == (user, mode)
    assert (config["security_opt"], config["cap_drop"]) == (["no-new-privileges", *label], ["ALL"])


def test_only_limits_that_the_engine_has_are_asked_for() -> None:
    config = host_config_of(SPEC, None, info_of(MemoryLimit=True, CpuCfsQuota=True))
    assert (config["mem_limit"], config["memswap_limit"], config["nano_cpus"]) == (1 << 30, 1 << 30, 2_000_000_000)
    config = host_config_of(SPEC, None, info_of(MemoryLimit=False, CpuCfsQuota=False))
    assert not {"mem_limit", "memswap_limit", "nano_cpus"} & set(config)


def test_the_id_of_podman_is_its_data_and_not_its_answer() -> None:
    first, second = (info_of(components="Podman Engine", ID=made_up) for made_up in ("93e68f69", "bb5fb2f8"))
    assert first.name == "podman"
    assert first.id
    assert first.id == second.id
    other = info_of(components="Podman Engine", DockerRootDir="/other")
    assert other.id != first.id
    assert info_of(ID="93e68f69").id == "93e68f69"


# --- the quick question ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\n{",
        b"\0" * 99,
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["closed", "no object", "an error", "no HTTP", "silent"],
)
def test_who_asks_quickly_takes_an_engine_that_does_not_answer_for_none(
    answer: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert quick_facts() is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(4096)
            if answer is not None:
                connection.sendall(answer)
                connection.close()
            kept.append(connection)

        kept: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert quick_facts() is None
        thread.join()
        kept[0].close()


def test_an_engine_elsewhere_is_not_asked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        assert quick_facts() is None
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
