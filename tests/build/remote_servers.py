"""Remote caches and executors for Bazel, real ones: nginx, BuildGrid, a buildbox worker in the build's own image."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bed import BED, bed
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy
from waits import run_within, wait_until

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec
from tfdock.types import Mount

from .elsewhere import make_certificates
from .harness import closed_port, connects

USER = "builder"


@contextlib.contextmanager
def served(command: Sequence[str | Path], address: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens, and is gone at the end, however it has to be told."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd="/") as process:
        try:
            wait_until(lambda: connects(address) or process.poll() is not None, 60)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()


# --- nginx --------------------------------------------------------------------------------------------------------

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
{user}
worker_processes 1;
events {{}}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/part;
  client_max_body_size 0;
  server {{
    listen {address}{ssl};
    {certificate}
    {password}
    location /cache/ {{
      root {folder}/store;
      dav_methods PUT;
      create_full_put_path on;
    }}
  }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class Nginx:
    """An HTTP cache: its URL, and what it was asked."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def asked(self, method: str) -> int:
        """How often it was asked so."""
        return len(re.findall(rf'"{method} /cache/', (self.folder / "access.log").read_text()))

    def kill(self) -> None:
        """As a power cut would, with its worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in (self.process.pid, *map(int, children)):
            os.kill(child, 9)
        self.process.wait(30)


@contextlib.contextmanager
def nginx_cache(folder: Path, *, password: str | None = None, store: Path | None = None) -> Iterator[Nginx]:
    """An HTTP cache, empty or with what is in a `store`; with a password it wants that, and speaks TLS."""
    program, address = bed("nginx"), closed_port()
    (folder / "part").mkdir(parents=True)
    if store:
        shutil.copytree(store, folder / "store")
    certificate, protection = "", ""
    if password is not None:
        made = make_certificates(folder / "tls")
        (folder / "users").write_text(f"{USER}:{{PLAIN}}{password}\n")
        certificate = f"ssl_certificate {made}/server.pem; ssl_certificate_key {made}/server-key.pem;"
        protection = f"auth_basic cache; auth_basic_user_file {folder}/users;"
    text = CONFIGURATION.format(
        folder=folder,
        address=address,
        ssl=" ssl" if certificate else "",
        certificate=certificate,
        password=protection,
        user="user root;" if os.geteuid() == 0 else "",
    )
    (folder / "nginx.conf").write_text(text)
    with served([program, "-c", folder / "nginx.conf"], address, folder / "log") as process:
        scheme = "https" if certificate else "http"
        yield Nginx(url=f"{scheme}://{address}/cache", folder=folder, process=process)


# --- BuildGrid ----------------------------------------------------------------------------------------------------

CACHE = """
server:
  - !channel {{address: "{address}", insecure-mode: true}}
authorization: {{method: none}}
storages:
  - !lru-storage &storage {{size: 512mb}}
caches:
  - !lru-action-cache &actions {{storage: *storage, max-cached-refs: 10000, allow-updates: true}}
instances:
  - name: {instance}
    services:
      - !action-cache {{cache: *actions}}
      - !cas {{storage: *storage}}
      - !bytestream {{storage: *storage}}
thread-pool-size: 50
"""
EXECUTOR = """
server:
  - !channel {{address: "{address}", insecure-mode: true}}
authorization: {{method: none}}
connections:
  - !sql-connection &sql
    connection-string: postgresql+psycopg2://bgd@{database}/bgd
    pool-size: 5
    pool-timeout: 30
    max-overflow: 20
storages:
  - !disk-storage &storage {{path: "{store}"}}
caches:
  - !lru-action-cache &actions {{storage: *storage, max-cached-refs: 10000, allow-updates: true}}
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    action-cache: *actions
    storage: *storage
    property-set: !dynamic-property-set
      match-property-keys: [tfdock-toolchain]
      wildcard-property-keys: []
    assigners:
      - !priority-age-assigner {{count: 2, interval: 0.1}}
instances:
  - name: ''
    services:
      - !action-cache {{cache: *actions}}
      - !execution {{scheduler: *scheduler}}
      - !cas {{storage: *storage}}
      - !bytestream {{storage: *storage}}
thread-pool-size: 50
"""


@contextlib.contextmanager
def buildgrid(folder: Path, configuration: str, **values: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`host:port` of a BuildGrid with that configuration, and its process."""
    python, address = bed("buildgrid"), closed_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bgd.yml").write_text(configuration.format(address=address, **values))
    command: list[str | Path] = [
        python,
        "-c",
        "from buildgrid.server.app import cli; cli()",
        "server",
        "start",
        folder / "bgd.yml",
    ]
    with served(command, address, folder / "bgd.log") as process:
        yield address, process


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """`host:port` of a PostgreSQL on the engine of DOCKER_HOST, whose database `bgd` has the tables of BuildGrid."""
    image, address = bed("postgres"), closed_port()
    # The reaper's image is on Docker Hub only. The end of this block removes the container.
    testcontainers_config.ryuk_disabled = True
    container = DockerContainer(image)
    # On this machine's loopback, as BuildGrid and everything else here.
    container.with_kwargs(network_mode="host").with_command(["-p", address.partition(":")[2]])
    container.waiting_for(LogMessageWaitStrategy("ready to accept connections"))
    with container:
        migrate = "from buildgrid.server.app import cli; cli()"
        url = f"postgresql+psycopg2://bgd@{address}/bgd"
        made = [bed("buildgrid"), "-c", migrate, "migrate", "apply", url]
        run_within(60, made, cwd="/").check_returncode()
        yield address


WORKER = """
run=/buildbox/run
printf '#!/bin/sh\\nexec /buildbox/run buildbox-run-hosttools "$@"\\n' >/tmp/hosttools
printf '#!/bin/sh\\nexec python3 /runner.py /store /tmp/hosttools "$@"\\n' >/tmp/runner
chmod 0755 /tmp/hosttools /tmp/runner
$run buildbox-casd --cas-remote=http://$1 --bind=unix:/tmp/casd.sock /tmp/casd &
until [ -S /tmp/casd.sock ]; do sleep 0.1; done
exec $run buildbox-worker --bots-remote=http://$1 --cas-remote=unix:/tmp/casd.sock --buildbox-run=/tmp/runner \\
  --platform OSFamily=linux --platform tfdock-toolchain=$2 \\
  --concurrent-jobs=2 --max-wait-time=5 --request-timeout=60 bot
"""


@contextlib.contextmanager
def worker(host: str, image: str, address: str, toolchain: str, store: Path) -> Iterator[str]:
    """A worker of an executor, in a container of an image; its id. `store` is where the executor keeps its blobs."""
    engine = DockerEngine(host)
    container = engine.create(
        ContainerSpec(
            name=f"tfdock-tests-{os.getpid()}-worker",
            image=image,
            command=("bash", "-c", WORKER, "worker", address, toolchain),
            mounts=(
                Mount(source=bed("buildbox"), target="/buildbox", read_only=True),
                Mount(source=str(BED.with_name("runner.py")), target="/runner.py", read_only=True),
                Mount(source=str(store), target="/store"),
            ),
            labels={RUN_LABEL: "worker"},
            network="host",
        )
    )
    try:
        engine.start(container)
        yield container
    finally:
        sys.stderr.write(b"".join(_said(engine, container)).decode(errors="replace")[-4000:])
        engine.remove(container)


def _said(engine: DockerEngine, container: str) -> Iterator[bytes]:
    """What it has printed until now; it goes on until it is told to stop."""
    engine.signal(container, "KILL")
    time.sleep(0.2)
    yield from engine.follow(container)
