"""What TensorBoard is shown: event files, and the curves of flows in them."""
