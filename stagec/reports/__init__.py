"""What was compiled, as pages to look at: memory over time, a step as a timeline, plans side by side, plans of a sweep."""
