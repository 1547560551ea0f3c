"""Mixed precision with opt levels, free of any training framework."""
