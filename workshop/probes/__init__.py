"""One probe for each exercise: a small scene in which only that function is the learner's."""
