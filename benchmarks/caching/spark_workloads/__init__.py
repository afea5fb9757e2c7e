"""What the Spark benchmark runs, and how one application of it is run and measured."""
