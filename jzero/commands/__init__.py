"""One file for each command of the `jzero` program; `jzero.cli` puts them together."""
