"""`python -m chartkit`: write the chart's README, or check that it is up to date."""

import argparse
import sys

from chartkit import README, page


def main() -> int:
    """Give the exit status: 1 where the page is out of date."""
    parser = argparse.ArgumentParser(prog="chartkit", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    if parser.parse_args().write:
        README.write_text(page())
        return 0
    if README.exists() and README.read_text() == page():
        return 0
    sys.stderr.write(f"{README}: out of date, run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
