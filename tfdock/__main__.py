"""Run the command line with ``python -m tfdock``."""

from tfdock.cli.main import main

if __name__ == "__main__":
    main()
