"""Quality gate: compares accelerated images with lossless ones before an acceleration is accepted."""
