"""English prose that nothing here was tuned on: Debian's policy and its developers' reference.

    python benchmarks/prose.py prose.txt

Needs Debian 12 or newer with apt; no root. The text is not kept here, as its license is the GPL.
"""

import gzip
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("debian-policy", "developers-reference")
FILES = (
    "usr/share/doc/debian-policy/policy.txt.gz",
    "usr/share/developers-reference/developers-reference.txt.gz",
)
LEAST_PARAGRAPH = 200
"""Characters; shorter ones are headings, lists and listings."""


def main() -> None:
    """Fetch, unpack and keep the paragraphs."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: prose.py OUTPUT")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *PACKAGES]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for package in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        texts = [gzip.decompress((folder / file).read_bytes()).decode() for file in FILES]
    paragraphs = [
        " ".join(paragraph.split())
        for text in texts
        for paragraph in re.split(r"\n\s*\n", text)
        if len(paragraph) >= LEAST_PARAGRAPH and paragraph.count("\n") > 1
    ]
    Path(sys.argv[1]).write_text("\n\n".join(paragraphs) + "\n")


if __name__ == "__main__":
    main()
