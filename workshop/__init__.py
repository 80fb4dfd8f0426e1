"""The workshop: turns each step into exercises, checks answers, explains mistakes."""
