"""What a plan says: its clauses, as data. The frontend makes them of text, `dist.plan` holds them in the IR; all that comes after reads them."""
