"""`python -m vecrl`: the command line."""

from vecrl.cli import main

if __name__ == "__main__":  # workers import this module too
    main()
