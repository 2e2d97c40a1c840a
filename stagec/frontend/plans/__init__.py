"""Plans: from the clauses of the text, through those that they extend, to a resolved `Plan`."""
