"""What observers ask a running actor, and how they are answered."""
