"""Models and data that prove the suite on real data; each folder is one field of work."""
