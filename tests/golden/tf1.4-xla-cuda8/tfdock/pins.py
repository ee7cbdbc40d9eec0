"""pins.py FILE: write down what `tfdock lock` pins: Bazel's own bytes, and the Python distributions with theirs.

The file gets lines `bazel SHA256` and `requirement NAME VERSION SHA256`. A distribution's sum is over the sums of its
files as pip wrote them down in RECORD; where a distribution has none (Debian's), over its metadata.

Runs on whichever Python the image has, 2.7 and 3.4 among them.
"""

import hashlib
import os
import re
import sys

# What pip writes into RECORD about the installation, not about the distribution.
OF_THE_INSTALLATION = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def bazel():
    """The program proper: what bazelisk downloaded, or what stands behind a wrapper script in PATH."""
    for folder, folders, files in os.walk(os.environ.get("BAZELISK_HOME", "")):
        folders.sort()
        if "bazel" in files:
            return os.path.join(folder, "bazel")
    for folder in os.environ["PATH"].split(os.pathsep):
        if os.access(os.path.join(folder, "bazel"), os.X_OK):
            found = os.path.realpath(os.path.join(folder, "bazel"))
            behind = os.path.join(os.path.dirname(found), "bazel-real")
            return behind if os.path.exists(behind) else found
    sys.exit("tfdock: there is no bazel in PATH")


def distributions():
    """Lines for every distribution; of two with one name, that which Python would import."""
    found = {}
    for folder in sys.path[1:]:
        for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if entry.endswith((".dist-info", ".egg-info")):
                line = distribution(os.path.join(folder, entry))
                if line:
                    found.setdefault(line.split()[1], line)
    return sorted(found.values())


def distribution(path):
    candidates = [os.path.join(path, name) for name in ("METADATA", "PKG-INFO")] if os.path.isdir(path) else [path]
    metadata = [read(name) for name in candidates if os.path.isfile(name)]
    if not metadata:
        return None
    headers = metadata[0].decode("utf-8", "replace").split("\n\n")[0].splitlines()
    fields = dict(line.split(": ", 1) for line in headers if re.match(r"(Name|Version): \S+\s*$", line))
    if len(fields) < 2:
        return None
    name = re.sub(r"[-_.]+", "-", fields["Name"].strip()).lower()
    return "requirement {} {} {}".format(name, fields["Version"].strip(), sha256(content(path) or metadata[0]))


def content(path):
    """The lines of RECORD that name a file of the distribution and its sum, sorted."""
    record = os.path.join(path, "RECORD")
    if not os.path.isfile(record):
        return b""
    lines = [line for line in read(record).splitlines() if b",sha256=" in line]
    parts = [(line, line.split(b",")[0].decode("utf-8", "replace").rpartition("/")[2]) for line in lines]
    return b"\n".join(sorted(line for line, name in parts if name not in OF_THE_INSTALLATION))


lines = ["bazel " + sha256(read(bazel()))] + distributions()
with open(sys.argv[1], "wb") as output:
    output.write("".join(line + "\n" for line in lines).encode("utf-8"))
