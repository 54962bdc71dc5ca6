"""`doctor`: a node is looked at, check by check, and nothing is changed. What both daemons' doctors are made of."""
