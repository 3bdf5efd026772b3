"""The one door to JAX's unstable surface: jaxprs, primitives by name, and what differs between JAX versions."""
