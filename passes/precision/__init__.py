"""Values that are stored or sent in fewer bits than they are computed in."""
