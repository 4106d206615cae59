"""Uncertainty of a score: calibration, conformal sets, bootstrap intervals, out-of-distribution detection."""
