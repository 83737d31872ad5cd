"""The decisions of learners, syncers and baselines, as pure state machines."""
