"""The kernel shim: FlowStats from, and leased caps to, chosen TCP flows of a stock Linux kernel."""
