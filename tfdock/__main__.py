"""Run the command line with ``python -m tfdock``."""

from tfdock.talk.cli import main

if __name__ == "__main__":
    main()
