"""Who decides the caps: the learned policy, its baselines, and the training that makes the former.

``artifact``, ``policy``, ``baselines``, ``names`` and ``guard`` serve; they import neither torch nor Ray.
``config``, ``ddpg``, ``replay``, ``rollout``, ``checkpoint``, ``train`` and ``export`` train.
"""
