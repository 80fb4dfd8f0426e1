"""`make explain`: a page that replays a real block's forward and backward at 1, 2, 4, 8 ranks."""
