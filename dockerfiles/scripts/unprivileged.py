"""unprivileged.py COMMAND [WORD...]: run an image step of the source as nobody, without any way to more rights.

The command gets the user 65534, the group 65533 alone, no capability, and no_new_privs. A parent stays root: it
ends whatever the command leaves running, and removes what the command leaves in the folders for temporary files.

Runs on whichever Python the image has, 2.7 and 3.4 among them.
"""

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys

NOBODY = 65534
# No group of a distribution or of a person who builds: /etc/passwd can be written by all but this one (toolchain.sh).
OWN_GROUP = 65533
# Always the same: a path of the home folder may enter what ./configure writes.
HOME = "/tmp/tfdock"
# The classic builder sets no limit. The kernel counts those of nobody in all containers; Bazel has some hundred.
MOST_PROCESSES = 8192
TEMPORARY = ("/tmp", "/var/tmp")
SOURCE = "/tf"

PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITY_VERSION_3 = 0x20080522

WANTED = {
    "Uid": [str(NOBODY)] * 4,
    "Gid": [str(OWN_GROUP)] * 4,
    "Groups": [],
    "CapInh": ["0" * 16],
    "CapPrm": ["0" * 16],
    "CapEff": ["0" * 16],
    "CapBnd": ["0" * 16],
    "CapAmb": ["0" * 16],
    "NoNewPrivs": ["1"],
}
"""What the kernel must say of the process; an old kernel does not tell the last two."""


def give_up_rights():
    """Give up every right, for this process and all that it starts; exit if the kernel says that one is left."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option, *arguments):
        words = (arguments + (0, 0, 0, 0))[:4]
        return libc.prctl(option, *[ctypes.c_ulong(word) for word in words])

    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MOST_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MOST_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    capability = 0
    while prctl(PR_CAPBSET_READ, capability) >= 0:
        prctl(PR_CAPBSET_DROP, capability)
        capability += 1
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    os.setgroups([])
    os.setresgid(OWN_GROUP, OWN_GROUP, OWN_GROUP)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # The change of user leaves the inheritable capabilities, which Docker before 20.10.14 gives to every container.
    libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    wrong = sorted(name for name in WANTED if name in status and status[name].split() != WANTED[name])
    if wrong:
        sys.exit("tfdock: the step of the source keeps rights: " + ", ".join(wrong))


def become(words):
    """Replace this process by the command, without rights."""
    give_up_rights()
    os.umask(0o022)
    os.mkdir(HOME, 0o700)
    os.environ.update(HOME=HOME, USER="tfdock", LOGNAME="tfdock")
    os.execvp(words[0], words)


def wait_for(child):
    """Wait for the child as the first process of a container has to; return its exit status as a shell gives it."""
    while True:
        found, status = os.wait()
        if found == child:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_all():
    """End every other process of the container, and wait until the last one is gone."""
    for action in (lambda: os.kill(-1, signal.SIGKILL), wait_for_all):
        try:
            action()
        except OSError as error:  # there is none
            if error.errno not in (errno.ESRCH, errno.ECHILD):
                raise


def wait_for_all():
    while True:
        os.wait()


def clean_up():
    """Remove nobody's temporary files, and the setuid and setgid bits of nobody's files in the source.

    No process of the source runs any more, so nobody can swap a file for a link under these commands. A search of the
    whole image takes seconds in each step. A setuid file elsewhere would give nobody's rights, and no others.
    """
    own = ["-xdev", "-user", str(NOBODY)]
    top = ["-mindepth", "1", "-maxdepth", "1"]
    subprocess.check_call(["find"] + list(TEMPORARY) + top + own + ["-exec", "rm", "-rf", "{}", "+"])
    subprocess.check_call(["find", SOURCE] + own + ["-perm", "/6000", "-exec", "chmod", "ug-s", "{}", "+"])


if __name__ == "__main__":
    if os.getpid() != 1:  # it would end every process of the machine
        sys.exit("tfdock: unprivileged.py runs only as the first process of a container")
    with open("/proc/self/environ", "rb") as file:
        if b"\0LC_CTYPE=" not in b"\0" + file.read():  # Python has set it for itself (PEP 538)
            os.environ.pop("LC_CTYPE", None)
    child = os.fork()
    if not child:
        become(sys.argv[1:])
    code = wait_for(child)
    end_all()
    if not code:
        clean_up()
    sys.exit(code)
