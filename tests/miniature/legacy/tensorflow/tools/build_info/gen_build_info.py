"""Writes the module behind tf.sysconfig.get_build_info(): what was configured, as a sorted list of pairs."""

import argparse
import runpy


def value_of(text):
    return {"true": True, "false": False}.get(text.lower(), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw_generate", required=True, metavar="FILE")
    parser.add_argument("--cuda_config", required=True, metavar="FILE")
    parser.add_argument("--key_value", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()

    build_info = dict(runpy.run_path(arguments.cuda_config)["config"])
    for pair in arguments.key_value:
        key, _, text = pair.partition("=")
        build_info[key] = value_of(text)

    with open(arguments.raw_generate, "w", encoding="utf-8") as module:
        module.write('"""How this package was built; written by the build."""\n')
        module.write("import collections\n\n")
        module.write(f"build_info = collections.OrderedDict({sorted(build_info.items())})\n")


if __name__ == "__main__":
    main()
