"""`python -m kvserving_operator`: read the settings and run until told to stop."""

import os
import sys

from kvserving_operator.errors import SettingsError
from kvserving_operator.handlers import run
from kvserving_operator.settings import settings_from_env


def main() -> int:
    """Give the exit status: 0 when told to stop, 1 when the Lease was lost, 2 for bad settings."""
    try:
        settings = settings_from_env(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
