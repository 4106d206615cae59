"""Analyses of fitted models beyond their test scores: reweighting, robustness, coverage, faithfulness."""
