"""LoRAs: strict file parsing, and weights patched from a pristine copy."""
