"""What pytest must not import here."""

# It switches the package's own kernels off for its process.
collect_ignore = ["shim_script.py"]
