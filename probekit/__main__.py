"""The `probekit` program. An interrupt during its imports is one line, too."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import the commands and run one."""
    try:
        from probekit.cli.main import main as program

        program()
    except KeyboardInterrupt:
        print("probekit: error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
