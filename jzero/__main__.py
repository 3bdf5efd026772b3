"""`python -m jzero` is the `jzero` program."""

from jzero.cli import main

if __name__ == "__main__":
    main()
