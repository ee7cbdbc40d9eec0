"""What an engine says of itself, and the containers that it gets for that."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tfdock.engine.address import EngineAddress
from tfdock.engine.engine_documents import host_config_of
from tfdock.engine.engine_facts import caller_user, engine_info, quick_facts
from tfdock.engine.protocol import ContainerSpec
from tfdock.types import EngineInfo

HERE = EngineAddress("unix:///nowhere/docker.sock", "as given")
ELSEWHERE = EngineAddress("tcp://builder:2376", "as given")
SPEC = ContainerSpec(name="x", image="x", command=("true",), memory=1 << 30, cpus=2.0)


def info_of(address: EngineAddress = HERE, components: str = "Engine", **answer: Any) -> EngineInfo:
    """The facts of an engine with that answer to `/info`."""
    version = {"Version": "28.5.2", "ApiVersion": "1.51", "Components": [{"Name": components}]}
    return engine_info({"NCPU": 4, "MemTotal": 1 << 34, "DockerRootDir": "/data", **answer}, version, address)


@pytest.mark.parametrize("program", ["Engine", "Podman Engine"])
def test_a_rootless_engine_knows_the_caller_as_root(program: str) -> None:
    info = info_of(components=program, SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"])
    assert caller_user(info, 1000, 1001) == "0:0"
    assert host_config_of(SPEC, None, info)["security_opt"] == ["no-new-privileges"]


def test_any_other_engine_knows_the_caller_by_number() -> None:
    info = info_of(SecurityOptions=["name=apparmor", "name=cgroupns"])
    assert caller_user(info, 1000, 1001) == "1000:1001"
    config = host_config_of(SPEC, None, info)
    assert config["security_opt"] == ["no-new-privileges"]
    assert config["cap_drop"] == ["ALL"]
    assert "userns_mode" not in config


@pytest.mark.parametrize(("address", "mode"), [(HERE, "host"), (ELSEWHERE, None)])
def test_folders_of_this_machine_need_the_user_namespace_of_the_host(
    address: EngineAddress, mode: str | None
) -> None:
    info = info_of(address, SecurityOptions=["name=userns"])
    assert caller_user(info, 1000, 1001) == "1000:1001"
    assert host_config_of(SPEC, None, info).get("userns_mode") == mode


@pytest.mark.parametrize(("address", "options"), [(HERE, ["label=disable"]), (ELSEWHERE, [])])
def test_folders_of_this_machine_need_a_container_without_a_label(address: EngineAddress, options: list[str]) -> None:
    config = host_config_of(SPEC, None, info_of(address, SecurityOptions=["name=selinux"]))
    assert config["security_opt"] == ["no-new-privileges", *options]


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
