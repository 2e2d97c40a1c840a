"""How tokens reach experts, and how many do."""
