"""What was measured, and where does it come from? Tables to and from Parquet, metadata, manifest."""
