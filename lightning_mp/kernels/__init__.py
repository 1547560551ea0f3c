"""Python face of the multi-tensor operations."""
