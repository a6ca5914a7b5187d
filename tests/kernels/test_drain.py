"""While the drain file exists, every answer closes its connection; before, none does."""

from pathlib import Path

import httpx
from fastapi import FastAPI

from kvserving_kernels.plugin.drain import DrainMiddleware


async def test_answers_ask_to_reconnect_only_while_draining(tmp_path: Path) -> None:
    file = tmp_path / "draining"
    app = FastAPI()
    app.add_middleware(DrainMiddleware, file=file)

    @app.get("/")
    async def root() -> str:
        return "served"

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        before = await client.get("/")
        file.touch()
        during = await client.get("/")
    assert "connection" not in before.headers
    assert during.headers["connection"] == "close"
    assert [before.json(), during.json()] == ["served", "served"]
