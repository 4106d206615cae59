"""Which system is best, on the same splits, with the same care for each?

STUDY.toml -> cells (dataset, system, seed) -> results -> a table with intervals
"""
