"""Within-series retrieval (Eq. 1): exact nearest windows on CPU, CUDA and other torch devices.

Read front.py first, then search.py, blocked.py and diagonal.py; on_cuda.py is diagonal.py on a GPU.
"""

from raxss.method.retrieval.cache import cached_retrieve_many, clear_cache
from raxss.method.retrieval.front import MEASURES, retrieve, retrieve_many
from raxss.method.retrieval.search import Retrieval, WindowFlag

__all__ = [
    "retrieve",
    "retrieve_many",
    "cached_retrieve_many",
    "clear_cache",
    "Retrieval",
    "WindowFlag",
    "MEASURES",
]
