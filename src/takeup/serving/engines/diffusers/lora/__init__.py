"""LoRAs: files read key by key, weights patched from a pristine copy, and many adapters beside one set of weights."""
