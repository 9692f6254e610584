"""Known answers: the whole tool on compiled models, whose truths are known, with truth and verdict side by side."""

from probekit.battery.page import markdown_page
from probekit.battery.result import KnownAnswer, KnownAnswers
from probekit.battery.run import known_answers

__all__ = ["KnownAnswer", "KnownAnswers", "known_answers", "markdown_page"]
