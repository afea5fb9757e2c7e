"""Kernels for CUDA devices, written in Triton. Imported only where there is such a device."""
