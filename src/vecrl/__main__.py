"""`python -m vecrl`: the command line."""

import os
import sys

from vecrl.cli import main

if __name__ == "__main__":  # workers import this module too
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # added by `python -m`: a command runs no files of the folder in which it is called
    main()
