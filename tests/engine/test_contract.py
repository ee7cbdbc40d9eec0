"""What every engine does: the fake and the real ones alike, so that tests on the fake mean something."""

from __future__ import annotations

import io
import re
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeBuild, FakeRun
from refusals import refusal
from waits import wait_until

from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL, Cancel, ContainerSpec
from tfdock.errors import BuildFailed, EngineError, Interrupted, OutOfMemory, Problem, TfdockError
from tfdock.types import Mount

from .bench import IMAGE, RUN, Bench, image_build, tar

FOREVER = "echo ready; while true; do sleep 0.1; done"


def endless(**changes: object) -> FakeRun:
    return FakeRun(output=[b"ready\n"], endless=True, **changes)  # type: ignore[arg-type]


# The engine and its images


def test_engine_tells_who_it_is(bench: Bench) -> None:
    info = bench.engine.info()
    assert [int(part) for part in info.api_version.split(".")] >= [1, 41]
    assert info.cpus > 0
    assert info.memory > 1 << 28
    assert info.data_root.startswith("/")
    assert info.local
    assert bench.engine.ping()


def test_build_gives_an_image_that_runs(bench: Bench) -> None:
    image, output = bench.build(
        "COPY greeting /greeting\nRUN cat /greeting", FakeBuild(output=[b"hello\n"], labels={IMAGE_LABEL: RUN})
    )
    assert b"hello" in output
    info = bench.engine.image(image)
    assert info is not None
    assert info.id == image
    assert info.labels[IMAGE_LABEL] == RUN
    printed, _ = bench.run("cat /greeting", FakeRun(output=[b"hello\n"]), image=image)
    assert printed == b"hello\n"
    bench.engine.remove_image(image)
    assert bench.engine.image(image) is None


def test_build_hands_its_output_on_as_it_comes(bench: Bench) -> None:
    """The first line stops a build that would never say more."""
    if bench.name == "fake":
        bench.fake.on_build = lambda _: FakeBuild(output=[b"one\n"], endless=True)
    cancel = Cancel()

    def output(piece: bytes) -> None:
        if piece == b"one\n":
            cancel.set()

    with pytest.raises(Interrupted):
        bench.engine.build(image_build(f"FROM {IMAGE}\nRUN echo one && sleep 3600"), output, cancel)


def test_build_argument_arrives_byte_exact(bench: Bench) -> None:
    value = "a\"b'c $(touch /pwn) `id` ☃\\\nRUN false"
    fake = FakeBuild(output=[value.encode()])
    _, output = bench.build('ARG V\nRUN printf %s "$V" && test ! -e /pwn', fake, build_args={"V": value})
    assert value.encode() in output.replace(b"\x1b[0m", b"")


def test_failing_step_is_named_with_its_exit_code(bench: Bench) -> None:
    problem = Problem(code="image-step-failed", message="the image step `RUN exit 9` failed with exit code 9")
    with refusal(BuildFailed, "image-step-failed", match="`RUN exit 9` failed with exit code 9"):
        bench.build("RUN exit 9", FakeBuild(error=BuildFailed(problem)))
    assert not bench.engine.containers(IMAGE_LABEL, RUN)


def test_context_without_dockerfile_is_refused(bench: Bench) -> None:
    with refusal(BuildFailed, "dockerfile-refused"):
        bench.build("RUN true", context=lambda: iter([tar({"elsewhere": b"FROM scratch"})]))


def test_failure_to_read_the_context_is_not_blamed_on_the_engine(bench: Bench) -> None:
    def unreadable() -> Iterator[bytes]:
        yield bytes(512)
        raise OSError("the disk with the sources is gone")

    with pytest.raises(OSError, match="the disk with the sources is gone"):
        bench.build("RUN true", context=unreadable)


def test_failure_to_write_the_log_is_not_blamed_on_the_engine(bench: Bench) -> None:
    def full(_: bytes) -> None:
        raise OSError("no room for the log")

    with pytest.raises(OSError, match="no room for the log"):
        bench.engine.build(image_build(f"FROM {IMAGE}"), full, Cancel())


def test_cancelled_build_stops_and_leaves_no_container(bench: Bench) -> None:
    cancel = Cancel()
    threading.Timer(1.0, cancel.set).start()
    with pytest.raises(Interrupted):
        bench.build("RUN sleep 3600", FakeBuild(endless=True), cancel=cancel)
    # Where the step had no name yet, the engine removes its container by itself.
    wait_until(lambda: not bench.engine.containers(IMAGE_LABEL, RUN))


def test_build_that_was_cancelled_before_does_not_begin(bench: Bench) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Interrupted):
        bench.build("RUN true", cancel=cancel)


def test_name_moves_from_image_to_image(bench: Bench) -> None:
    first, _ = bench.build("LABEL which=1")
    second, _ = bench.build("LABEL which=2")
    for image in (first, second):
        bench.engine.tag(image, f"tfdock-test/moving:{RUN}")
        info = bench.engine.image(f"tfdock-test/moving:{RUN}")
        assert info is not None
        assert info.id == image
        assert f"tfdock-test/moving:{RUN}" in info.tags
    bench.engine.remove_image(f"tfdock-test/moving:{RUN}")
    bench.engine.remove_image(f"tfdock-test/moving:{RUN}")
    assert bench.engine.image(f"tfdock-test/moving:{RUN}") is None


def test_tagging_what_is_not_there_is_refused(bench: Bench) -> None:
    with refusal(EngineError, "image-missing"):
        bench.engine.tag("tfdock-test/absent:1", "tfdock-test/absent:2")


def test_sending_what_is_not_there_is_refused(bench: Bench) -> None:
    with refusal(EngineError, "image-missing"):
        bench.engine.push("127.0.0.1:1/tfdock-test/absent:1", lambda _: None)


def test_an_image_that_lost_its_name_is_dangling_until_it_is_removed(bench: Bench) -> None:
    label, name = f"tfdock-test-{RUN}-lost", f"tfdock-test/lost:{RUN}"
    older, _ = bench.build(f'LABEL {label}="1"', FakeBuild(labels={label: "1"}))
    bench.engine.tag(older, name)
    assert bench.engine.dangling(label) == []
    newer, _ = bench.build(f'LABEL {label}="2"', FakeBuild(labels={label: "2"}))
    bench.engine.tag(newer, name)
    (image,) = bench.engine.dangling(label)
    assert (image.id, image.labels[label], image.tags) == (older, "1", ())
    assert bench.engine.dangling(f"tfdock-test-{RUN}-other") == []
    bench.engine.remove_image(older)
    assert bench.engine.dangling(label) == []
    bench.engine.remove_image(name)


def saved(bench: Bench, *names: str) -> bytes:
    return b"".join(bench.engine.save(names, Cancel()))


def pieces(content: bytes) -> list[bytes]:
    return [content[start : start + 65536] for start in range(0, len(content), 65536)]


def test_images_go_into_an_archive_and_come_back_with_their_names(bench: Bench) -> None:
    names = [f"tfdock-test/saved:{RUN}-{number}" for number in (1, 2)]
    for name in names:
        image, _ = bench.build(f"LABEL which={name}", FakeBuild(labels={"which": name}))
        bench.engine.tag(image, name)
    archive = saved(bench, *names)
    assert archive.endswith(bytes(1024)), "what whoever keeps it looks at"
    assert bench.name == "fake" or len(archive) < 1.5 * len(saved(bench, names[0])), "a layer of both is in it once"
    for name in names:
        bench.engine.remove_image(name)
    bench.engine.load(pieces(archive), Cancel())
    for name in names:
        image_info = bench.engine.image(name)
        assert image_info is not None
        assert image_info.labels["which"] == name
        printed, _ = bench.run("echo here", FakeRun(output=[b"here\n"]), image=name)
        assert printed == b"here\n"
        bench.engine.remove_image(name)


def test_image_that_is_not_there_is_not_saved(bench: Bench) -> None:
    with refusal(EngineError, "image-missing"):
        saved(bench, "tfdock-test/absent:1")


def test_archive_that_breaks_off_leaves_no_image(bench: Bench) -> None:
    name = f"tfdock-test/cut:{RUN}"
    bench.engine.tag(bench.build("LABEL cut=yes", FakeBuild(labels={"cut": "yes"}))[0], name)
    archive = saved(bench, name)
    bench.engine.remove_image(name)

    def breaking() -> Iterator[bytes]:
        yield archive[: len(archive) - 4096]
        raise OSError("the bundle is damaged")

    with pytest.raises(OSError, match="the bundle is damaged"):
        bench.engine.load(breaking(), Cancel())
    assert bench.engine.image(name) is None


def test_archive_that_is_none_is_refused(bench: Bench) -> None:
    with refusal(EngineError, "image-archive-refused"):
        bench.engine.load([b"no archive" * 100], Cancel())


def test_saving_and_loading_stop_when_that_is_asked_for(bench: Bench) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Interrupted):
        list(bench.engine.save([IMAGE], cancel))
    with pytest.raises(Interrupted):
        bench.engine.load([b"x" * 1000], cancel)


# The life of a container


def test_container_is_created_started_and_removed(bench: Bench) -> None:
    container = bench.engine.create(bench.spec("exit 3", FakeRun(exit_code=3)))
    created = bench.engine.state(container)
    assert created is not None
    assert not created.running
    assert created.exit_code is None, "what never ran has not succeeded"
    bench.engine.start(container)
    ended = bench.ended(container)
    assert (ended.exit_code, ended.oom_killed, ended.labels[RUN_LABEL]) == (3, False, RUN)
    assert bench.engine.state(ended.name) == ended
    bench.engine.remove(container)
    assert bench.engine.state(container) is None
    bench.engine.remove(container)


def test_removing_kills_what_runs(bench: Bench) -> None:
    container = bench.started(FOREVER, endless())
    assert next(iter(bench.engine.follow(container))) == b"ready\n"
    bench.engine.remove(container)
    assert bench.engine.state(container) is None


def test_containers_are_found_by_label_and_value(bench: Bench) -> None:
    mine = bench.engine.create(bench.spec("true", labels={RUN_LABEL: RUN, "which": f"{RUN}-a"}))
    other = bench.engine.create(bench.spec("true", labels={RUN_LABEL: RUN, "which": f"{RUN}-b"}))
    assert [state.id for state in bench.engine.containers("which", f"{RUN}-a")] == [mine]
    assert {mine, other} <= {state.id for state in bench.engine.containers("which")}
    assert bench.engine.containers("which", "nobody") == []
    bench.engine.remove(mine)
    bench.engine.remove(other)


def test_output_arrives_while_the_container_runs(bench: Bench) -> None:
    container = bench.started(FOREVER, endless())
    assert next(iter(bench.engine.follow(container))) == b"ready\n"
    state = bench.engine.state(container)
    assert state is not None
    assert state.running
    assert state.exit_code is None
    bench.engine.remove(container)


def test_the_output_of_a_container_can_be_read_again_after_its_end(bench: Bench) -> None:
    lines = [f"line {number}\n".encode() for number in range(1, 300)]
    container = bench.started('i=1; while [ $i -lt 300 ]; do echo "line $i"; i=$((i+1)); done', FakeRun(output=lines))
    for _ in range(2):
        assert b"".join(bench.engine.follow(container)) == b"".join(lines)
    bench.engine.remove(container)


def test_both_output_streams_are_followed(bench: Bench) -> None:
    output, _ = bench.run("echo one; sleep 0.1; echo two >&2", FakeRun(output=[b"one\n", b"two\n"]))
    assert output == b"one\ntwo\n"


def test_control_characters_and_text_come_through(bench: Bench) -> None:
    output, _ = bench.run(r"printf '\000\033[31m\r\n\té☃'", FakeRun(output=["\0\x1b[31m\r\n\té☃".encode()]))
    assert output == "\0\x1b[31m\r\n\té☃".encode()


def test_end_of_the_output_is_never_lost(bench: Bench) -> None:
    for _ in range(6):
        output, _ = bench.run("echo a; echo b; echo the end", FakeRun(output=[b"a\n", b"b\n", b"the end\n"]))
        assert output == b"a\nb\nthe end\n"


def test_interrupt_reaches_the_process(bench: Bench) -> None:
    container = bench.started(f"trap 'exit 7' INT; {FOREVER}", endless(signals={"INT": 7}))
    assert next(iter(bench.engine.follow(container))) == b"ready\n"
    bench.engine.signal(container, "INT")
    assert bench.ended(container).exit_code == 7
    bench.engine.signal(container, "INT")
    bench.engine.remove(container)
    bench.engine.signal(container, "INT")


def test_kill_ends_what_ignores_everything_else(bench: Bench) -> None:
    container = bench.started(f"trap '' INT TERM; {FOREVER}", endless(signals={}))
    assert next(iter(bench.engine.follow(container))) == b"ready\n"
    bench.engine.signal(container, "TERM")
    bench.engine.signal(container, "KILL")
    assert bench.ended(container).exit_code == 137
    bench.engine.remove(container)


def test_memory_kill_is_told_even_if_the_command_goes_on(bench: Bench) -> None:
    bench.skip_without_limits()
    # The kernel is told which of them to kill: else it takes the shell at times.
    hungry = "sh -c 'echo 1000 >/proc/self/oom_score_adj; exec tail -n 1'"
    script = f"head -c 400000000 /dev/zero | {hungry}; echo survived; exit 5"
    # Of a hundred runs on a busy machine the kernel takes the shell too in two, and the engine misses one kill.
    for _ in range(3):
        _, state = bench.run(script, FakeRun(exit_code=5, oom_killed=True), memory=48 << 20)
        if state.oom_killed and state.exit_code == 5:
            break
    assert state.oom_killed
    assert state.exit_code == 5
    assert bench.engine.memory_killed(state.id)
    _, other = bench.run("exit 5", FakeRun(exit_code=5))
    assert not bench.engine.memory_killed(other.id), "that was another one, with the same labels"


def test_file_is_read_out_of_a_container(bench: Bench) -> None:
    content = bytes(range(256)) * 300
    fake = FakeRun(output=[content], files={"/tmp/data": content, "/tmp/large": 14 * content})
    script = """
    i=0; while [ $i -lt 300 ]; do cat /src/bytes; i=$((i+1)); done > /tmp/data
    i=0; while [ $i -lt 14 ]; do cat /tmp/data; i=$((i+1)); done > /tmp/large
    """
    container = bench.started(script, fake, mounts=(bench.folder({"bytes": bytes(range(256))}, "/src"),))
    bench.ended(container)
    assert bench.engine.read_file(container, "/tmp/data") == content
    assert bench.engine.read_file(container, "/tmp/absent") is None
    with refusal(EngineError, "container-file-refused"):
        bench.engine.read_file(container, "/tmp/large")
    bench.engine.remove(container)
    assert bench.engine.read_file(container, "/tmp/data") is None


def test_name_of_an_earlier_try_is_taken_over(bench: Bench) -> None:
    spec = bench.spec(FOREVER, endless())
    first = bench.engine.create(spec)
    bench.engine.start(first)
    second = bench.engine.create(spec)
    assert second != first
    assert bench.engine.state(first) is None
    bench.engine.remove(second)


def test_name_of_a_strange_container_is_left_alone(bench: Bench) -> None:
    spec = bench.spec("true", labels={"strange": RUN})
    strange = bench.engine.create(spec)
    with refusal(EngineError, "container-name-taken"):
        bench.engine.create(spec)
    assert bench.engine.state(strange) is not None
    bench.engine.remove(strange)


def test_mounted_folder_is_written(bench: Bench) -> None:
    mount = bench.folder({}, "/out")

    def effect(spec: ContainerSpec) -> None:
        Path(spec.mounts[0].source, "wheel").write_text("done\n")

    _, state = bench.run("echo done > /out/wheel", FakeRun(effect=effect), mounts=(mount,))
    assert state.exit_code == 0
    assert Path(mount.source, "wheel").read_text() == "done\n"


def test_missing_mount_source_is_refused_and_not_created(bench: Bench) -> None:
    missing = bench.temporary / "missing"
    with refusal(EngineError, "mount-source-missing") as error:
        bench.engine.create(bench.spec("true", mounts=(Mount(source=str(missing), target="/x"),)))
    assert str(missing) in str(error.value)
    assert not missing.exists()


def test_volume_is_made_once_found_by_its_label_and_removed(bench: Bench) -> None:
    name, labels = f"{RUN}-{bench.name}-labelled", {RUN_LABEL: f"{RUN}-volumes"}
    bench.engine.create_volume(name, labels)
    bench.engine.create_volume(name, labels)
    assert bench.engine.volumes(RUN_LABEL, f"{RUN}-volumes") == [name]
    assert name in bench.engine.volumes(RUN_LABEL)
    assert bench.engine.volumes(RUN_LABEL, "nobody") == []
    bench.engine.remove_volume(name)
    assert bench.engine.volumes(RUN_LABEL, f"{RUN}-volumes") == []
    bench.engine.remove_volume(name)


def test_a_volume_that_cannot_be_mounted_is_refused_when_its_container_starts(bench: Bench) -> None:
    name = f"{RUN}-{bench.name}-nothing"
    layers = "lowerdir=/nonexistent/a,upperdir=/nonexistent/b,workdir=/nonexistent/c"
    bench.engine.create_volume(name, {RUN_LABEL: RUN}, {"type": "overlay", "device": "overlay", "o": layers})
    mounts = (Mount(source=name, target="/box", kind="volume"),)
    container = bench.engine.create(bench.spec("true", mounts=mounts))
    with refusal(EngineError, "volume-mount-refused"):
        bench.engine.start(container)
    bench.engine.remove(container)
    bench.engine.remove_volume(name)


def test_files_are_put_into_a_volume_and_what_its_user_makes_of_them_comes_back(bench: Bench) -> None:
    name, user = f"{RUN}-{bench.name}-carried", "12345:54321"
    bench.engine.create_volume(name, {RUN_LABEL: RUN})
    before = bench.engine.create(bench.spec("true", mounts=(Mount(source=name, target="/box", kind="volume"),)))
    content = bytes(range(256)) * 5000
    entries = [owned("box", user), owned("box/given", user, content), owned("box/in", user)]
    bench.engine.put(before, "/", [*entries, bytes(1024)])
    bench.engine.remove(before)

    def effect(spec: ContainerSpec) -> None:
        folder = Path(spec.mounts[0].source)
        (folder / "in/made").write_bytes((folder / "given").read_bytes())

    script = "cat /work/given > /work/in/made && test ! -w /bin && echo well"
    fake = FakeRun(output=[b"well\n"], effect=effect)
    container = bench.started(
        script, fake, user=user, read_only=True, mounts=(Mount(source=name, target="/work", kind="volume"),)
    )
    output = b"".join(bench.engine.follow(container))
    assert (output, bench.ended(container).exit_code) == (b"well\n", 0)
    archive = io.BytesIO(b"".join(bench.engine.get(container, "/work")))
    with tarfile.open(fileobj=archive) as tar:
        made = tar.extractfile("work/in/made")
        assert made is not None
        assert made.read() == content
    bench.engine.remove(container)
    bench.engine.remove_volume(name)


def owned(name: str, user: str, content: bytes | None = None) -> bytes:
    """A member of an archive that belongs to a user: a file, or a folder."""
    entry = tarfile.TarInfo(name)
    entry.uid, entry.gid = (int(part) for part in user.split(":"))
    entry.type, entry.mode = (tarfile.DIRTYPE, 0o755) if content is None else (tarfile.REGTYPE, 0o644)
    entry.size = len(content or b"")
    return entry.tobuf() + (content or b"") + bytes(-entry.size % 512)


def test_source_of_files_that_fails_is_not_blamed_on_the_engine(bench: Bench) -> None:
    def breaking() -> Iterator[bytes]:
        yield owned("box", "0:0")
        raise OSError("the folder is gone")

    name = f"{RUN}-{bench.name}-broken"
    bench.engine.create_volume(name, {RUN_LABEL: RUN})
    container = bench.engine.create(bench.spec("true", mounts=(Mount(source=name, target="/box", kind="volume"),)))
    with pytest.raises(OSError, match="the folder is gone"):
        bench.engine.put(container, "/", breaking())
    bench.engine.remove(container)
    bench.engine.remove_volume(name)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        pytest.param(
            lambda b: b.engine.create(b.spec("true", image="tfdock-test/absent:1")), "image-missing", id="create"
        ),
        pytest.param(lambda b: b.engine.start("tfdock-absent"), "container-gone", id="start"),
        pytest.param(lambda b: list(b.engine.follow("tfdock-absent")), "container-gone", id="follow"),
    ],
)
def test_what_is_absent_is_named(bench: Bench, act: object, expected: str) -> None:
    assert callable(act)
    with refusal(TfdockError, expected):
        act(bench)


def test_gpus_of_an_engine_that_gives_none_are_an_error_that_says_so(bench: Bench) -> None:
    if set(bench.engine.info().runtimes) - {"runc", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux"}:
        pytest.skip("this engine has a runtime of its own, which may give GPUs")
    container = bench.engine.create(bench.spec("true", gpus=True))
    with refusal(EngineError, "gpu-runtime-missing"):
        bench.engine.start(container)
    bench.engine.remove(container)


# What only a kernel can do


def facts(output: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in output.decode().splitlines())
    return {name: value for name, _, value in lines}


def test_container_has_no_powers(real: Bench) -> None:
    script = """
    while IFS=: read -r name value; do
      case $name in CapEff|CapBnd|NoNewPrivs) echo "$name=$(echo $value)";; esac
    done < /proc/self/status
    echo "id=$(id -u):$(id -g)"; echo "net=$(ls /sys/class/net | tr '\\n' ' ')"; echo "files=$(ulimit -n)"
    echo "dir=$(pwd)"; touch /tmp/made && echo "tmp=yes"; touch /root-only 2>/dev/null || echo "root=no"
    printf '#!/bin/sh\\necho exec=yes\\n' > /tmp/run && chmod +x /tmp/run && /tmp/run
    """
    output, state = real.run(script, user="12345:54321", workdir="/tmp", tmpfs={"/tmp": "rw,exec,mode=1777,size=1m"})
    assert state.exit_code == 0
    found = facts(output)
    assert int(found.pop("CapEff"), 16) == 0
    assert int(found.pop("CapBnd"), 16) == 0
    assert 4096 <= int(found.pop("files")) <= 65536
    assert found == {
        "NoNewPrivs": "1",
        "id": "12345:54321",
        "net": "lo ",
        "dir": "/tmp",
        "tmp": "yes",
        "root": "no",
        "exec": "yes",
    }


def test_image_that_is_read_only_can_be_written_to_in_mounts_and_temporary_folders_only(real: Bench) -> None:
    script = "exec 2>&1; touch /made /bin/made; echo yes > /out/made; echo yes > /tmp/made && cat /tmp/made"
    mount = real.folder({}, "/out")
    output, state = real.run(script, read_only=True, tmpfs={"/tmp": "rw,mode=1777,size=1m"}, mounts=(mount,))
    assert state.exit_code == 0
    assert output.count(b"Read-only file system") == 2
    assert output.endswith(b"yes\n")
    assert Path(mount.source, "made").read_text() == "yes\n"


def test_devices_and_the_groups_that_may_open_them_are_given_when_asked_for(real: Bench) -> None:
    device = next((path for path in ("/dev/kmsg", "/dev/fuse", "/dev/loop-control") if Path(path).exists()), None)
    if device is None:
        pytest.skip("no device here that containers do not have anyway")
    script = f"test -c {device} && echo there; while read -r line; do echo $line; done < /proc/self/status"
    without, _ = real.run(script, user="12345:54321")
    assert not without.startswith(b"there")
    given, _ = real.run(script, user="12345:54321", devices=(device,), groups=(4711, 4712))
    assert given.startswith(b"there\n")
    groups = re.search(rb"^Groups:(.*)$", given, re.MULTILINE)
    assert groups
    assert set(groups[1].split()) - {b"54321"} == {b"4711", b"4712"}


def test_processes_are_limited(real: Bench) -> None:
    real.skip_without_limits()
    # The threads of runc, which starts the command, count too: with a limit of a few, it may not come to the command.
    output, state = real.run("for i in $(seq 60); do sleep 1 & done; echo all", pids=40)
    assert b"fork" in output, state
    assert b"all" not in output


def test_environment_arrives_byte_exact(real: Bench) -> None:
    values = {
        "A": 'a"b',
        "B": "it's",
        "C": "$(touch /pwn) `id` $HOME",
        "D": "two\nlines",
        "E": "☃ é\\",
        "F": "",
        "G": "-e x=y; id",
    }
    output, _ = real.run("cat /proc/self/environ; test -e /pwn && echo pwned", environment=values)
    entries = output.split(b"\0")
    assert {f"{name}={value}".encode() for name, value in values.items()} <= set(entries)
    assert b"pwned" not in output


def test_command_arrives_byte_exact_whatever_the_entry_point(real: Bench) -> None:
    image, _ = real.build('ENTRYPOINT ["/bin/echo", "entry"]\nCMD ["cmd"]')
    words = ("a b", "$(id)", "", "☃", "two\nlines")
    output, _ = real.run("", image=image, command=("printf", "[%s]", *words))
    assert output.decode() == "".join(f"[{word}]" for word in words)


def test_mount_that_is_read_only_cannot_be_written(real: Bench) -> None:
    mount = real.folder({"kept": b"old"}, "/in", read_only=True)
    output, _ = real.run("cat /in/kept; echo new > /in/kept; touch /in/more", mounts=(mount,))
    assert b"old" in output
    assert output.count(b"Read-only file system") == 2


def test_volume_outlives_its_container(real: Bench) -> None:
    volume = Mount(source=f"{RUN}-{real.name}", target="/v", kind="volume")
    real.run("echo kept > /v/file", mounts=(volume,))
    output, _ = real.run("cat /v/file", mounts=(volume,))
    assert output == b"kept\n"
    real.remove_volume(volume.source)


def test_memory_limit_includes_swap(real: Bench) -> None:
    real.skip_without_limits()
    version_1 = "cat memory.limit_in_bytes memory.memsw.limit_in_bytes"
    script = f"cd /sys/fs/cgroup; (cat memory.max memory.swap.max || cd memory && {version_1}) 2>/dev/null"
    output, _ = real.run(script, memory=64 << 20)
    assert output.split() in ([b"67108864", b"67108864"], [b"67108864", b"0"], [b"67108864"])


def test_only_regular_files_are_read_out_of_a_container(real: Bench) -> None:
    container = real.engine.create(real.spec("true"))
    for path in ("/bin/sh", "/tmp"):
        with pytest.raises(EngineError, match="not a regular file"):
            real.engine.read_file(container, path)
    passwd = real.engine.read_file(container, "/etc/passwd")
    assert passwd is not None
    assert passwd.startswith(b"root:")
    real.engine.remove(container)


def test_image_step_that_is_killed_for_memory_is_told_apart(real: Bench) -> None:
    real.skip_without_limits()
    with refusal(OutOfMemory, "image-step-out-of-memory"):
        real.build('RUN ["/bin/tail", "-c", "400000000", "/dev/zero"]', memory=48 << 20)


def test_image_step_that_is_killed_otherwise_is_not_called_out_of_memory(real: Bench) -> None:
    with pytest.raises(BuildFailed, match="exit code 137"):
        real.build("RUN sh -c 'kill -9 $$'; exit $?")


@pytest.mark.parametrize(
    "dockerfile",
    [
        pytest.param("FROMAGE x", id="unknown"),
        pytest.param("RUN --mount=type=cache,target=/c true", id="buildkit"),
    ],
)
def test_dockerfile_that_the_classic_builder_does_not_know_is_refused(real: Bench, dockerfile: str) -> None:
    with refusal(BuildFailed, "dockerfile-refused"):
        real.build(dockerfile)


def test_network_that_does_not_exist_is_named(real: Bench) -> None:
    spec = real.spec("true", network="tfdock-no-such")
    # podman refuses the container itself, Docker its start.
    with refusal(EngineError, "network-not-found", match="tfdock-no-such"):
        real.engine.start(real.engine.create(spec))
    state = real.engine.state(spec.name)
    assert state is None or state.exit_code != 0
    real.engine.remove(spec.name)


def test_step_container_of_a_cancelled_build_is_gone_at_once(real: Bench) -> None:
    cancel = Cancel()

    def cancel_in_the_step() -> None:
        wait_until(lambda: steps(real))
        cancel.set()

    thread = threading.Thread(target=cancel_in_the_step)
    thread.start()
    with pytest.raises(Interrupted):
        real.build(f"RUN sleep 60 # {time.time()}", cancel=cancel)
    assert not steps(real)
    thread.join()


def steps(bench: Bench) -> list[str]:
    return [state.id for state in bench.engine.containers(IMAGE_LABEL, RUN) if state.running]
