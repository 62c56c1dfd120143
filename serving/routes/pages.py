"""The page to try a model in the browser, and the metrics."""

from pathlib import Path

from fastapi import APIRouter, Request, Response

from gauntlet import bundle

PAGE = Path(__file__).parents[1] / "page"
SHARED = Path(bundle.__file__).with_name("page")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
FILES = {path.name: path.read_bytes() for folder in (PAGE, SHARED) for path in folder.iterdir()}
router = APIRouter()


@router.get("/", include_in_schema=False)
@router.get("/page.js", include_in_schema=False)
@router.get("/drawing.js", include_in_schema=False)
@router.get("/page.css", include_in_schema=False)
async def page(request: Request) -> Response:
    """Return a file of the page."""
    name = request.scope["route"].path[1:] or "index.html"
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
    return Response(FILES[name], media_type=KINDS[Path(name).suffix], headers=headers)


@router.get("/metrics", tags=["metrics"])
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    registry = request.app.state.repository.metrics
    return Response(registry.text(), headers={"content-type": registry.content_type})
