"""A library of labelled cases of other recordings, and the search for those that a window is like."""
