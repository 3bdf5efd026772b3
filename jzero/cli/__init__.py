"""One file for each command of the `jzero` program; `jzero.cli.program` puts them together."""
