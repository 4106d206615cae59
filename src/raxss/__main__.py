"""``python -m raxss`` is ``raxss``."""

from raxss.cli import main

main()
