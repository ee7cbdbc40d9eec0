"""Lays out the files of the wheel in a temporary folder and packs them; run by the rule tf_wheel."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, type=pathlib.Path, help="the wheel to write")
    parser.add_argument("--project_name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--setup", required=True, type=pathlib.Path)
    parser.add_argument("files", nargs="*", metavar="PLACE=FILE", help="a file and its place in the wheel")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copy(arguments.setup, folder / "setup.py")
        (folder / "VERSION").write_text(arguments.version + "\n", encoding="utf-8")
        for pair in arguments.files:
            place, _, source = pair.partition("=")
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--project_name", arguments.project_name]
        # Bazel passes no HOME on, and setuptools gives up when the user has no entry in /etc/passwd either.
        subprocess.run(command, cwd=folder, env={"HOME": name, **os.environ}, check=True)
        wheels = [wheel.name for wheel in (folder / "dist").iterdir()]
        if wheels != [arguments.output.name]:
            sys.exit(f"expected {arguments.output.name}, but setuptools made {wheels}")
        shutil.copyfile(folder / "dist" / wheels[0], arguments.output)


if __name__ == "__main__":
    main()
