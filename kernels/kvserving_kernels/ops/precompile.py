"""Compiles the kernels for CPUs when an image is built, for the kind of processor it is built on.

Usage: python -m kvserving_kernels.ops.precompile FOLDER. Engines of that image take the machine
code over where they run on the same kind of processor, and need not compile.
"""

import os
import sys
from pathlib import Path
from typing import Final

MACHINE_FILE: Final = "machine.txt"
CACHE_FOLDER: Final = "NUMBA_CACHE_DIR"
"""Variable that names the folder where Numba keeps machine code for the next start."""


def machine() -> str:
    """What machine code depends on: compiler, processor, and where the source lies."""
    import numba
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    source = Path(__file__).parent
    return f"numba {numba.__version__}, {binding.get_host_cpu_name()}, {features}, {source}"


def main(folder: Path) -> None:
    """Compile every kernel, for one thread and for several."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[CACHE_FOLDER] = str(folder)
    from kvserving_kernels.ops import numba_attend, numba_store

    for module in (numba_attend, numba_store):
        # Numba compares the time of the last change, and layers of an image keep whole seconds.
        source = str(module.__file__)
        seconds = int(os.stat(source).st_mtime)
        os.utime(source, (seconds, seconds))
    for together in (False, True):
        numba_attend.attend_kernel(together)
        numba_store.store_kernel(together)
    (folder / MACHINE_FILE).write_text(machine())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
