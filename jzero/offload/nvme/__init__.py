"""The optimizer's state in files: read ahead, updated by sub-groups, written behind, and never half of a step."""
