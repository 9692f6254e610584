"""What a reader must know before the best score is quoted."""

from probekit.evaluation.results.data import ProbeData


def cautions(data: ProbeData) -> list[str]:
    """Short phrases, the most important first; [] when all is well."""
    return []
