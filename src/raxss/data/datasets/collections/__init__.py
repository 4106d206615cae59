"""The datasets that raxss knows by name, one module each.

Every module here is imported and registers its dataset: to add one, add a module. `bonn` is the shortest to imitate
for files on a disk, `synthetic` for series that a function makes.
"""

from importlib import import_module
from pkgutil import iter_modules

from raxss.data.datasets.registry import DATASETS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

# What is there already comes first, then what must be copied or downloaded.
_BY_PLACE = ("package", "made", "disk")
_ordered = sorted(
    DATASETS.values(), key=lambda item: (_BY_PLACE.index(item.where), bool(item.base), item.name)
)
DATASETS.clear()
DATASETS.update((item.name, item) for item in _ordered)
