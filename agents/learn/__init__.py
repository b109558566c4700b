"""Training: configuration, DDPG, replay, rollouts under Ray, checkpoints, and the export of a model."""
