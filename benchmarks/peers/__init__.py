"""The same load on the peers, one file per peer."""
