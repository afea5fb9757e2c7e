"""Sources of instances: random generators and files."""
