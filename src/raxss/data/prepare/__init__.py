"""From a plan to a folder of series that are ready to learn from, and back.

units.py       one recording -> one file of samples, in the memory of a few blocks
preparing.py   all recordings of a plan, by several processes; goes on after a kill
folder.py      the folder -> PreparedCollection, samples mapped from the disk
"""

from raxss.data.prepare.folder import PreparedCollection, is_prepared, read_prepared

__all__ = ["PreparedCollection", "is_prepared", "read_prepared"]
