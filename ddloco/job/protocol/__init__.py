"""A job's messages, events and effects, and how parameters are split into fragments."""
