"""What `make bench` runs: each measure beside the obvious alternative, in one run, as ratios."""
