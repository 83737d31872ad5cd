"""What decides: every choice of a learner, a syncer or a baseline, as pure state machines."""
