"""Evidence as files: report, tables, BIDS derivatives, MNE annotations."""
