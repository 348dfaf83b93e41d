"""`python -m raysync` is `raysync`."""

from raysync.cli import main

main()
