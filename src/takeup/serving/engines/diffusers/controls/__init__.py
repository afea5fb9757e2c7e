"""ControlNets as workers beside the denoiser: in its thread, in threads of their own, or in other processes."""
