"""What a link is, whoever carries the packets: the domain to draw links from, logs and figures."""
