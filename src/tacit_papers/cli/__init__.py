"""The commands of `tacit papers`."""
