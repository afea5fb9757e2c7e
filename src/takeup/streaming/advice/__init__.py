"""Advice built on the solvers: QoE of a whole cell, start thresholds and player settings, sizing."""
