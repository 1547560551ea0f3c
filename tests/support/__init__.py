"""What several tests share; on the path as ``support`` (see pyproject.toml)."""
