"""The `calibrl` command."""

from __future__ import annotations

import sys

from calibrl.errors import CalibrlError, MissingExtra


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2."""
    from calibrl.cli import app

    try:
        app()
    except (CalibrlError, MissingExtra) as problem:
        print(f"calibrl: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
