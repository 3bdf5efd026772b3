"""One use of parameters: what it gathers, its forward and backward half, and how both run."""
