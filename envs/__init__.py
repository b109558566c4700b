"""Links and what runs over them: trace, link, sender, metrics, and the Gymnasium environments ``reinet/...``.

Importing this package registers the environments; Gymnasium asks for no more (``gymnasium.make("reinet/SimLink-v0")``).
"""

from reinet.envs.registration import register_envs

register_envs()
