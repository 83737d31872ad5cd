"""What must hold in every run, checked beside simulated worlds and on tapes."""
