"""Who decides a cap: agents by name, the guard behind them, and the loop that asks them for every flow."""
