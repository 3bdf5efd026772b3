"""Scripts and manifests that start a job by a cluster's own means, printed instead of run."""
