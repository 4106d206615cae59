"""Case library: labelled windows of other recordings, kept for retrieval across recordings.

encoder.py says what a library needs of a model; additions.py, selection.py and pseudonyms.py make cases of series;
patient_file.py, folder.py and policy.py keep them; case_library.py is the library, cases.py what it gives. Then
search.py finds the nearest cases, case_index.py makes a library ready for votes.py, and vote_fit.py fits what
vote_settings.py leaves open. raxss/estimator/with_library.py predicts with them.
"""

from raxss.library.additions import Added
from raxss.library.case_library import CaseLibrary
from raxss.library.cases import Cases, Standardisation
from raxss.library.encoder import EncodedSeries, Encoder
from raxss.library.policy import Policy
from raxss.library.search import CaseSearch, NearestCases
from raxss.library.selection import Selection
from raxss.library.vote_settings import VoteSettings

__all__ = [
    "CaseLibrary",
    "Added",
    "Cases",
    "Standardisation",
    "Encoder",
    "EncodedSeries",
    "Selection",
    "Policy",
    "CaseSearch",
    "NearestCases",
    "VoteSettings",
]
