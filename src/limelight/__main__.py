"""``python -m limelight``: the command line, as ``torchrun -m limelight`` needs it."""

from limelight.cli import main

if __name__ == "__main__":
    main(prog_name="limelight")
