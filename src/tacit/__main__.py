"""`python -m tacit` is `tacit`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # where `python -m` is typed, files may lie that are called like modules

from tacit.cli.main import main

main()
