"""Results of cluster as tables and charts: replays, benefits, forecasts and offers, and a controller at work."""
