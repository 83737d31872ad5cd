"""Learners and syncers as roles of a program: what is opened for each, and how they resume."""
