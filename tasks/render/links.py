"""Which links of a record may be clicked."""

from urllib.parse import urlsplit


def is_web(url: str) -> bool:
    """Tell whether a link leads to a web page; anything else (javascript:, data:) is not made clickable."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)
