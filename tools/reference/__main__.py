"""Writes every generated page, or says with `--check` which are not what the code gives."""

from __future__ import annotations

import sys

from tools.reference.pages import out_of_date, write

if "--check" in sys.argv[1:]:
    late = out_of_date()
    for path in late:
        print(f"{path} is not what the code gives: make docs")
    sys.exit(bool(late))
write()
