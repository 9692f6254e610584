"""What a picture says, as data: curves, what they are compared with, axes, colours. matplotlib and the page draw it."""
