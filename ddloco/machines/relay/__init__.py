"""The relay of a site: one sum for its learners' contributions, and their fragments spread."""
