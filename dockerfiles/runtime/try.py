"""try.py REQUEST: test a runtime image as the image's user, with `pip check` and scripts.

REQUEST is a JSON file with

    mark    the beginning of each result line
    facts   the argument of each script
    checks  a list of {check, script}, in order; `user` and `dependencies` have no script

For each check, a line `MARK {"check", "outcome", "expected", "found", "reason"}` is printed. The scripts are in the
folder `verify` beside this file. Runs on any Python that the image has.
"""

import json
import os
import subprocess
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "verify")


def ordinary(probe):
    """Check that the user is not root, and cannot write to the image's Python."""
    found = "user {0}, who may {1}write".format(os.getuid(), "" if os.access(sys.prefix, os.W_OK) else "not ")
    ok = os.getuid() != 0 and not os.access(sys.prefix, os.W_OK)
    return probe.check(ok, "a user who is not root, and may not write", found, "the image is not what was made")


def consistent(probe):
    """Check with pip that the installed packages have everything that they require."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    said = process.communicate()[0].strip()
    return probe.check(process.returncode == 0, "pip check finds nothing", "", said[-1000:])


OWN = {"user": ordinary, "dependencies": consistent}


def result(probe, check, facts):
    try:
        if not check["script"]:
            return OWN[check["check"]](probe)
        return probe.load(os.path.join(SCRIPTS, check["script"]))(facts)
    except Exception as error:
        traceback.print_exc()
        return probe.failed("", "", "{0}: {1}".format(type(error).__name__, str(error).strip()[:1000]))


def main():
    sys.path.insert(0, SCRIPTS)
    import probe

    with open(sys.argv[1]) as file:
        request = json.load(file)
    for check in request["checks"]:
        found = dict(result(probe, check, request["facts"]), check=check["check"])
        sys.stdout.write("{0} {1}\n".format(request["mark"], json.dumps(found, sort_keys=True)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
