"""File formats of recordings: how each is opened and read."""
