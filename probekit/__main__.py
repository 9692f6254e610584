"""The `probekit` program; an interrupt while it is being imported is one line as well."""

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
