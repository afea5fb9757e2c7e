"""ControlNet workers concurrent with the denoiser: in its thread, in other threads, or in other processes."""
