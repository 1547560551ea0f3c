"""Files that ``lightning-mp init`` copies."""
