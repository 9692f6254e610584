"""What a probe is compared with: baselines, control tasks, codelength."""
