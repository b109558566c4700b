"""What an operator looks at: single flows, the model, all flows at once."""
