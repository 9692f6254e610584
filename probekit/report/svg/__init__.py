"""Pictures as SVG, made of escaped elements: no chart library, no style attributes, colours from classes of the page."""
