"""Pages of studies: tables, figures and texts for a reader."""
