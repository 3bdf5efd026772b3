"""`python -m jzero`, and the program `jzero`: it imports little before Ctrl-C is silent."""

from jzero.base.interruption import silent_interrupt


def main() -> None:
    """The entry point of the `jzero` program."""
    with silent_interrupt():
        from jzero.cli.program import main as program
    program()


if __name__ == "__main__":
    main()
