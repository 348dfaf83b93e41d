"""What other paradigms would make of step times that were measured under any trainer."""
