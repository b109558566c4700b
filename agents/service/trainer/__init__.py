"""``reinet.trainer``: the public client of the training service, under the name that its users import.

The wheel and the checkout install this folder as ``reinet.trainer`` (``pyproject.toml``).
"""

from reinet.agents.service.client import Client
from reinet.core.errors import ReinetError, ServiceError

__all__ = ["Client", "ReinetError", "ServiceError"]
