"""The model as a folder: what it holds, how it is checked, and the network as plain layers."""
