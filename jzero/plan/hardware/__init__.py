"""GPUs, networks and the clusters made of them."""
