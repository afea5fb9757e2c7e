"""`python -m takeup`."""

from takeup.cli import main

main()
