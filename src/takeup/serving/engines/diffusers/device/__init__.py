"""What makes network calls fast on a device: packed weights, compiled regions, recorded passes, streams."""
