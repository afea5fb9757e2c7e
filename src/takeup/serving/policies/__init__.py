"""What serving decides: batches, forms of LoRAs, how late they may come, and what stays in the cache of adapters."""
