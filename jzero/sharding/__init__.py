"""The mesh, which dimension of each array is sharded over it, and the collectives that move shards."""
