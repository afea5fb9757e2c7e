"""A pool of GPUs as flat arrays, and the rules by which schedulers fill it.

`rules` says what a scheduler may choose, `layout` holds the arrays, `snapshot` fills them from a state, `evidence` is
what a quota is made from, and `fast` has the kernels: one scheduling pass, shared by replays and real engines.
"""
