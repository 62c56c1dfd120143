"""The page to try a model in the browser, and the metrics."""

from pathlib import Path

from fastapi import APIRouter, Request, Response

from gauntlet import bundle

PAGE = Path(__file__).parents[1] / "page"
ASSETS = Path(bundle.__file__).with_name("web")
SHARED = ("drawing.js", "page.css")
"""Files that the page of a bundle has, too."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'"
KINDS = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "drawing.js": "text/javascript",
    "page.css": "text/css",
}
FILES = {name: ((ASSETS if name in SHARED else PAGE) / name).read_bytes() for name in KINDS}
router = APIRouter()


def _file(name: str) -> Response:
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
    return Response(FILES[name], media_type=KINDS[name], headers=headers)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/page.js", include_in_schema=False)
async def script() -> Response:
    """Return the page's script."""
    return _file("page.js")


@router.get("/drawing.js", include_in_schema=False)
async def drawing() -> Response:
    """Return the part of the script that draws."""
    return _file("drawing.js")


@router.get("/page.css", include_in_schema=False)
async def style() -> Response:
    """Return the page's style."""
    return _file("page.css")


@router.get("/metrics", tags=["metrics"])
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    found = request.app.state.repository.metrics
    return Response(found.text(), headers={"content-type": found.content_type})
