"""Text that people read in a terminal, whoever wrote the parts of it.

Messages quote what users, engines and gateways say. `kubectl describe` prints them as they are, so
that a newline would pass for another row, and an escape sequence would move the cursor.
"""

UNPRINTABLE = "\ufffd"


def plain(text: str) -> str:
    """The text as one line of printable characters, as long as before."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else UNPRINTABLE
