"""Limits of a server."""

from pydantic import Field

from gauntlet.core.frozen import Frozen


class Limits(Frozen):
    """What one client can ask of the server at most."""

    deadline_ms: float = Field(
        1000,
        gt=0,
        allow_inf_nan=False,
        description="from a request's last byte to its outputs; a request may ask for less",
    )
    max_queue: int = Field(1024, ge=1, description="requests that wait, for each model")
    max_rows: int = Field(256, ge=1, description="samples of one request")
    max_body_mb: float = Field(64, gt=0, allow_inf_nan=False, description="size of a request's body")
    max_image_megapixels: float = Field(
        32, gt=0, allow_inf_nan=False, description="of the decoded images of a request, together"
    )
    read_timeout_s: float = Field(30, gt=0, description="to receive a request's body")

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_image_pixels(self) -> int:
        """`max_image_megapixels` in pixels."""
        return int(self.max_image_megapixels * 1e6)
