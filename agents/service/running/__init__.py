"""One job at work: its process, who starts it, who looks after it, and the files that they tell each other with."""
