"""Who does without Inspect is told what to install, and pays nothing for it."""

import subprocess
import sys

from probekit.errors import UsageError


def test_the_room_says_what_is_missing():
    code = "import sys; sys.modules['inspect_ai'] = None; import probekit.inspect"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{UsageError.__module__}.{UsageError.__name__}: ")
    assert "pip install '.[inspect]'" in last


def test_the_package_does_not_import_the_room():
    code = "import sys, probekit, probekit.cli.main; print({'inspect_ai', 'probekit.inspect'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
