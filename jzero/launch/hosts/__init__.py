"""Which machines a job runs on, which of their slots it takes, how each is reached, and which variables it is given."""
