"""Baselines: the systems that RAxSS is compared with.

    series -> fit, predict_proba (n_series, C), as of RAxSSClassifier

One file a family: sequences.py (recurrent networks and Mamba over whole series), mil.py (attention over windows),
rocket.py (random kernels, those of rocket_features.py), forest.py (hand-made features), trivial.py; padded.py
(aeon's random kernels with ridge regression) and neighbour.py (DTW) on whole padded series; statistics_forest.py.
What they share is in common.py and loop.py.
"""
