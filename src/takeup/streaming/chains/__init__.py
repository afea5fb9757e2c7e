"""Chains: what one video sees of the cell it shares, for every kind of cell. `chain_of` is the usual way in.

Names are loaded on first use, so that a plain cell does not wait for the others.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
