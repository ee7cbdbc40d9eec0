"""try.py REQUEST: what a runtime image does, as its own user: pip's opinion of it, and what scripts find.

REQUEST is a JSON file with

    mark    what a line with a result begins with
    facts   what the scripts are told
    checks  a list of {check, script}, in order; `user` and `dependencies` have no script

Of each check a line `MARK {"check", "outcome", "expected", "found", "reason"}` is printed. The folder of the scripts
lies beside this file, as `verify`. Runs on whichever Python the image has.
"""

import json
import os
import subprocess
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "verify")


def ordinary(probe):
    """Whether it is an ordinary user's, who can change nothing of it."""
    found = "user {0}, who may {1}write".format(os.getuid(), "" if os.access(sys.prefix, os.W_OK) else "not ")
    ok = os.getuid() != 0 and not os.access(sys.prefix, os.W_OK)
    return probe.check(ok, "a user who is not root, and may not write", found, "the image is not what was made")


def consistent(probe):
    """Whether what is installed is what everything in it requires."""
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
