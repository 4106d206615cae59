"""Training: the window pool, one step, one epoch (Algorithm 1), checkpoints."""
