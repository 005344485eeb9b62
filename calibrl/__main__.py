"""The `calibrl` command."""

from __future__ import annotations

import io
import re
import sys
from typing import NoReturn

from calibrl.errors import CalibrlError, MissingExtra, first_line
from calibrl.lazy import environment, ignore_settings
from calibrl.text import for_terminal


# Libraries start Python processes of their own (GLFW does), which would look in the current folder first.
@environment({"PYTHONSAFEPATH": "1"})
def main() -> None:
    """Run the command line; bad input, and a disk that will not, end with one line on stderr and exit code 2."""
    from calibrl.cli import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know no ±
            stream.reconfigure(errors="backslashreplace")
    ignore_settings()
    try:
        app()
    except (CalibrlError, MissingExtra) as problem:
        _end(str(problem))
    except OSError as problem:
        file = problem.filename2 or problem.filename
        if file is None:
            raise
        _end(f"{file}: {problem.strerror}; choose a file or folder that can be read and written")
    except UnicodeEncodeError as problem:
        near = problem.object[max(0, problem.start - 20) : problem.end + 20]
        _end(f"{near}: a file's or folder's name is not UTF-8; rename it")
    except (OverflowError, RecursionError) as problem:
        _end(f"a number or a file is beyond what can be computed with ({first_line(problem)}); check what was given")
    except (MemoryError, RuntimeError) as problem:
        # torch has no class of its own for memory that a CPU does not have.
        if not isinstance(problem, MemoryError) and not re.search("allocate memory|out of memory", str(problem)):
            raise
        _end("there is not enough memory for this; see that files and settings ask for no more than they should")


def _end(words: str) -> NoReturn:
    print(f"calibrl: {for_terminal(' '.join(words.splitlines()))}", file=sys.stderr)
    raise SystemExit(2) from None


if __name__ == "__main__":
    main()
