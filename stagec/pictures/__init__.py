"""Pictures as pages that need nothing but themselves: charts in SVG, a timeline that one can zoom.

Numbers in, text out; nothing here knows what a model or a plan is. No library draws them: those that draw in a browser bring
megabytes of script into each page (docs/decisions/pictures.md).
"""
