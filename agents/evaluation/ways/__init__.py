"""Ways of sending against each other over the same emulated links (``reinet bench alcc --against``)."""
