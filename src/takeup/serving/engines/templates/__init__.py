"""Templates: what the tokens of an image left in every step of one run, kept for the edits that follow."""
