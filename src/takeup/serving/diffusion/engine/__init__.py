"""The step engine and the families of pipelines it serves."""
