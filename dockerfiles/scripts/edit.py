"""edit.py FILE SOURCE: make edits in the folder SOURCE. If one cannot be made, none is, and the build stops.

FILE is JSON: a list of `edit` (its name), `file`, `find` (a text that the file has once) and `put` (what it becomes).

Runs on whichever Python the image has, 2.7 and 3.4 among them.
"""

import io
import json
import os
import sys

with io.open(sys.argv[1], encoding="utf-8") as file:
    edits = json.load(file)
texts = {}
for edit in edits:
    name = edit["file"]
    if name not in texts:
        try:
            with io.open(os.path.join(sys.argv[2], name), encoding="utf-8", newline="") as file:
                texts[name] = file.read()
        except EnvironmentError:
            texts[name] = ""
    found = texts[name].count(edit["find"])
    if found != 1:
        sys.stderr.write(
            "tfdock: the edit %s is not for this source: %s has its text %d times, not once\n"
            % (edit["edit"], name, found)
        )
        sys.stderr.write("tfdock: if the source is mended already, write `edits: none` in the profile\n")
        sys.exit(67)
    texts[name] = texts[name].replace(edit["find"], edit["put"])
    sys.stdout.write("applying the edit %s to %s\n" % (edit["edit"], name))
for name, text in sorted(texts.items()):
    with io.open(os.path.join(sys.argv[2], name), "w", encoding="utf-8", newline="") as file:
        file.write(text)
