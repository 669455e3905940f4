"""What every test runs under: eight CPU devices, no silent promotion of dtypes or ranks, no network.

HYPOTHESIS_PROFILE=thorough tries many more examples, other ones each time. JAX_PLATFORMS=cuda runs on a GPU.
"""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import hypothesis
import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

_SLOW_FIRST_CALL = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "ci", max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW_FIRST_CALL
)
hypothesis.settings.register_profile(
    "thorough", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=_SLOW_FIRST_CALL
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
