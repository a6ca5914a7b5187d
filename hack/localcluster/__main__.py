"""Entry of `python3 hack/localcluster`.

A folder run as a script is no package, so its parent goes on the path first.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from localcluster.cli import main  # noqa: E402 - the path above makes the package importable

sys.exit(main(sys.argv[1:]))
