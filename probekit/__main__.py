"""The `probekit` program. Too little memory during its imports is one line, too."""

import sys
from typing import NoReturn

from probekit.errors import StorageError
from probekit.machine.program import is_out_of_memory


def main() -> NoReturn:
    """Import the commands and run one."""
    try:
        from probekit.cli.main import main as program

        program()
    except KeyboardInterrupt:
        print("probekit: interrupted", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print("probekit: error: out of memory while the program was loaded; free some memory", file=sys.stderr)
        sys.exit(StorageError.exit_code)


if __name__ == "__main__":
    main()
