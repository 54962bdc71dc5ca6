"""What hooks answered: merged with owners, and put onto a CRI request."""
