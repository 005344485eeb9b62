"""The `calibrl` command."""

from __future__ import annotations

import sys
from typing import NoReturn

from calibrl.errors import CalibrlError, MissingExtra


def main() -> None:
    """Run the command line; bad input, and a disk that will not, end with one line on stderr and exit code 2."""
    from calibrl.cli import app

    try:
        app()
    except (CalibrlError, MissingExtra) as problem:
        _end(str(problem))
    except OSError as problem:
        file = problem.filename2 or problem.filename
        if file is None:
            raise
        _end(f"{file}: {problem.strerror}; choose a file or folder that can be read and written")


def _end(words: str) -> NoReturn:
    print(f"calibrl: {words}", file=sys.stderr)
    raise SystemExit(2) from None


if __name__ == "__main__":
    main()
