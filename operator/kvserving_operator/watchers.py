"""Who is told of looks besides the status: the web view and traces, where an installation asks."""

import asyncio
from contextlib import AsyncExitStack

from kvserving_operator.looks import Watcher
from kvserving_operator.settings import Settings
from kvserving_operator.tracing.emitter import to_collector
from kvserving_operator.tracing.tracer import DecisionTracer
from kvserving_operator.web.book import Book
from kvserving_operator.web.server import View, serve


async def watch(settings: Settings, resources: AsyncExitStack) -> tuple[Watcher, ...]:
    """Start what is asked for; it ends with `resources`. OSError for a port that is in use."""
    watchers: list[Watcher] = []
    if settings.web_listen_port:
        book = Book()
        runner = await serve(View(book, settings.hosts), settings.web_listen_port)
        resources.push_async_callback(runner.cleanup)
        watchers.append(book)
    if settings.otlp_endpoint:
        emitter = to_collector(settings.otlp_endpoint, settings.identity)
        # On a thread: a collector that is away would hold up what else has to end.
        resources.push_async_callback(asyncio.to_thread, emitter.shutdown)
        watchers.append(DecisionTracer(emitter))
    return tuple(watchers)
