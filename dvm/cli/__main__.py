"""``python -m dvm.cli``."""

from dvm.cli import main

if __name__ == "__main__":
    main(prog_name="dvm")
