"""`python -m smartgen.cli`, for where the console script is not on the path."""

from smartgen.cli import main

main()
