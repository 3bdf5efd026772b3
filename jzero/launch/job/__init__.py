"""The launcher's side of a job: its agents, one attempt after the other, and what each end of an attempt leads to."""
