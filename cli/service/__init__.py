"""Commands around the training service: the service itself, its jobs and its models."""
