"""``python -m dvm``: the same as the ``dvm`` command."""

from dvm.cli import main

if __name__ == "__main__":
    main(prog_name="dvm")
