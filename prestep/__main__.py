"""`python -m prestep`: the command line."""

from prestep.cli import main

if __name__ == "__main__":
    main(prog_name="prestep")
