"""Do `cache push` and `cache pull` between Bazel's disk caches on this machine and a cache in a registry.

One manifest makes all packs of a push visible at once. A killed push makes nothing visible. A pull makes a pack's
blobs visible when the whole pack has arrived and is verified. An action becomes visible only after all its blobs.
Builds may run during a push or pull.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.bazel.cache import push_plan
from tfdock.bazel.cache.cache_folder import CacheFolder, folders
from tfdock.bazel.cache.cache_pull import CachePull, PulledCache
from tfdock.bazel.cache.cache_push import CachePush, Inventory, PushedCache, Say, inventory
from tfdock.bazel.cache.registry_cache import Layers, Shelf, StoredCache
from tfdock.errors import Locked, NetworkError
from tfdock.host.files import file_error, held
from tfdock.host.supervise import Stop
from tfdock.host.untrusted_folders import remove_folder
from tfdock.oci import http
from tfdock.plan.trust_domain import RELEASE, in_domains
from tfdock.types import Digest

_TRIES = 8  #: The number of tries to publish a push. A try fails if another push finishes first.
_STAGE = re.compile(r"layers-[0-9a-f]{12}")  #: Name of the temporary folder of a push or pull.


@dataclass
class Exchange:
    """Pushes and pulls entries between a cache folder and a registry. `say` is called with progress messages."""

    cache: CacheFolder
    stored: StoredCache
    say: Say
    stop: Stop
    _waited_for: set[str] = field(default_factory=set)

    # --- push ---------------------------------------------------------------------------------------------------

    def push(self, keys: Iterable[str]) -> tuple[list[PushedCache], Digest | None]:
        """Push missing entries of these toolchains. Return what was sent, and the digest of the manifest.

        Raises NetworkError (`cache-push-raced`) if another push finished first at each try.
        """
        with self._stage() as stage:
            push = CachePush(self.stored, self.say, stage, [self._inventory_of(key) for key in keys])
            for number in range(_TRIES):
                self.stop.check()
                stored = self.stored.read()
                layers, before = stored or (Layers(), None)
                # After a race, `layers` has the other push, and only missing packs are sent.
                packs_by_key = push.prepare(layers)
                if not packs_by_key:
                    return push.results(), before
                digest = self.stored.publish(push_plan.with_packs(layers, packs_by_key), before)
                if digest:
                    return push.results(), digest
                self.say("somebody else pushed at the same time: the two pushes are merged")
                # Wait for a random time: two pushes that collided should not collide again.
                http.wait(random.uniform(0.1, 0.5) * (number + 1), self.stop.check)
        raise NetworkError.of(
            "cache-push-raced",
            f"other pushes changed `{self.stored.image}` {_TRIES} times during this push",
            "run the same command again: finished uploads are not sent again",
        )

    def _inventory_of(self, key: str) -> Inventory:
        disk = self.cache.disk(key)
        # Shared with builds: they only add entries. Only prune, which removes them, must wait.
        with disk.held(alone=False, waiting=self._waiting):
            return inventory(disk)

    def _waiting(self, who: str) -> None:
        self.stop.check()
        if who not in self._waited_for:
            self._waited_for.add(who)
            self.say(f"waiting for {who}")

    # --- pull ---------------------------------------------------------------------------------------------------

    def pull(self, keys: Iterable[str], domains: Iterable[str] = (RELEASE,)) -> list[PulledCache]:
        """Pull the missing entries of these disk caches. Without keys, pull all disk caches of these domains."""
        with self._stage() as stage:
            stored = self.stored.read()
            if stored is None:
                raise NetworkError.of(
                    "image-not-found",
                    f"the registry {self.stored.image.registry} has no cache `{self.stored.image}`, "
                    "or you have no permission to see it",
                    f"check the name; push a cache first: `tfdock cache push {self.stored.image}`",
                )
            shelves = stored[0].shelves
            # Without keys, only the named trust domains count: caches of other domains need a request by name.
            wanted = list(dict.fromkeys(keys)) or [key for key in shelves if in_domains(key, domains)]
            absent = [key for key in wanted if key not in shelves]
            if absent:
                raise NetworkError.of(
                    "image-not-found",
                    f"`{self.stored.image}` has no entries for the toolchain {', '.join(absent)}",
                    f"toolchains there: {', '.join(shelves) or 'none'}; leave `--toolchain` out to pull all",
                )
            return [self._pull_shelf(key, shelves[key], stage) for key in wanted]

    def _pull_shelf(self, key: str, shelf: Shelf, stage: Path) -> PulledCache:
        disk = self.cache.disk(key)
        with disk.held(alone=False, waiting=self._waiting):
            return CachePull(self.stored, self.say, disk, stage).restore(shelf)

    # --- both ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _stage(self) -> Iterator[Path]:
        """Use the cache, and a new folder on its file system that is removed afterwards.

        Folders of killed runs are removed too.
        """
        downloads = self.cache.root / "downloads"
        try:
            with self.cache.in_use(waiting=self._waiting):
                for folder in (found for found in folders(downloads) if _STAGE.fullmatch(found.name)):
                    # The kernel frees the lock of a process that died. A folder whose lock is free belongs to no run.
                    with suppress(Locked), self._removed_at_end(folder):
                        pass
                folder = downloads / f"layers-{secrets.token_hex(6)}"
                with self._removed_at_end(folder):
                    folder.mkdir(parents=True)
                    yield folder
        except OSError as error:
            raise file_error(error, {"the cache": self.cache.root}) from error

    @contextmanager
    def _removed_at_end(self, folder: Path) -> Iterator[None]:
        """Hold a folder's lock; then remove the folder and the lock. Raises Locked if another run has it."""
        lock = self.cache.root / "locks" / folder.name
        with held(lock, str(folder), alone=True):
            try:
                yield
            finally:
                remove_folder(folder)
                lock.unlink(missing_ok=True)
