"""The sections of a DeepSpeed JSON, each key with its type, default and verdict."""
