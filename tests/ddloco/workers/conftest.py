"""A process that tests workers has eight devices; by default only the first one is used."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
