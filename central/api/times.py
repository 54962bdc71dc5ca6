"""Write the current time as Kubernetes does: RFC 3339, in UTC. Source: metav1.Time and metav1.MicroTime of
k8s.io/apimachinery."""

from datetime import UTC, datetime


def time_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_seconds(timestamp: str | None) -> int:
    """Return Unix seconds; 0 where there is no timestamp."""
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0
