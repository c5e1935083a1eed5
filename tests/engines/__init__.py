"""What serving engines print of themselves, as stored facts, against what the planner says of them."""
