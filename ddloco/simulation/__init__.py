"""The method without a network: the machines in virtual time, and links and failures counted."""
