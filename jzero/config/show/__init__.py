"""A configuration for people: notes, tables, and the reference page."""
