"""Pictures as SVG, made of escaped elements: no style attributes, colours from classes of the page."""
