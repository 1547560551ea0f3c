"""What the benchmarks share; importable when a script of ``bench/`` runs."""
