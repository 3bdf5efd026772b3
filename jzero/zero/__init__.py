"""The ZeRO step, what the project exists for: stages, precision, loss scale, gradients, update, and the build."""
