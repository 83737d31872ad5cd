"""The framework: what any actors need, whatever they compute.

Nothing here knows of learners, syncers or their work: those are one program on this stage, a
user's own (``program``) is another.
"""
