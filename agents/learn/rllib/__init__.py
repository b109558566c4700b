"""RLlib beside reinet's learner: its algorithms on reinet's environments, and the learner as one of its algorithms."""
