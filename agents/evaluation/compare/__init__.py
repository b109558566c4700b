"""Models compared on one page of TensorBoard: what they did on each link, lying over each other."""
