"""Within-series retrieval (Eq. 1): one front door, an exact CPU kernel, a torch path for the GPU.

Read front.py first, then result.py, search.py, blocked.py and diagonal.py.
"""

from raxss.retrieval.cache import cached_retrieve, clear_cache
from raxss.retrieval.front import MEASURES, retrieve
from raxss.retrieval.result import Retrieval, WindowFlag

__all__ = ["retrieve", "cached_retrieve", "clear_cache", "Retrieval", "WindowFlag", "MEASURES"]
