"""The ordered Schur form: an orthonormal basis of the directions of a matrix that decay, or of those that grow.

It is scipy's, whose import takes as long as hundreds of answers, so it is imported lazily on first use.
"""

from __future__ import annotations

from typing import Literal

from takeup.core.arrays import Floats

HalfPlane = Literal["lhp", "rhp"]


def schur_basis(matrix: Floats, half_plane: HalfPlane) -> tuple[Floats, Floats, int]:
    """The Schur form and its basis with one half-plane first, and how many eigenvalues lie in it."""
    from scipy.linalg import schur

    form, basis, num_found = schur(matrix, sort=half_plane)
    return form, basis, int(num_found)
