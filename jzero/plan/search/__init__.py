"""The settings of a run on a cluster: worked out, put in order, and one of them recommended."""
