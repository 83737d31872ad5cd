"""What is said and what happens in a job: messages, events, effects, and how parameters are cut."""
