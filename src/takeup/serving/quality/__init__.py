"""The quality gate: no accelerated result without a look at what it does to images."""
