"""Evidence as files: report, PDF, tables, BIDS derivatives, MNE annotations."""
