"""The machine underneath: writing to disk, threads and devices, progress bars."""
