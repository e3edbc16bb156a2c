"""`python -m cdcwatch`."""

from cdcwatch.cli.main import main

main()
