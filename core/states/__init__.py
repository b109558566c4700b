"""What is made of a flow's records: states, rewards, actions and caps."""
