"""Step 5: tensor × data parallel training, from a laptop to 8 × 64 ranks."""
