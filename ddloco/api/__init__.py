"""Jobs from Python: started, watched, stopped, and their models as the task's own pytree."""
