FLOW_STATS_FIELDS: list[tuple[str, str, int]]
FLOW_STATS_SIZE: int
ACK_FIELDS: list[tuple[str, str, int]]
ACK_SIZE: int
FLAG_APP_LIMITED: int
FLAG_IN_RECOVERY: int
FLAG_SLOW_START: int
FLAG_NO_SAMPLE: int
FLAG_CLOSED: int
