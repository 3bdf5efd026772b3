"""`python -m jzero` is the `jzero` program."""

from jzero.cli.program import main

if __name__ == "__main__":
    main()
