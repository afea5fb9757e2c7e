"""Request traces with adapters: sampled from published measurements, or read from a published trace."""
