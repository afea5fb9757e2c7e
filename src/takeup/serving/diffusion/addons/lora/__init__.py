"""LoRAs: strict file parsing, weights patched from a pristine copy, and unmerged adapters per row."""
