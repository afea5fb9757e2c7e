"""Templates: activations of an image in every step of one run, cached for later edits."""
