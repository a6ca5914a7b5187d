"""Who is told of looks besides the status: the web view and traces, where an installation asks."""

from contextlib import AsyncExitStack

from kvserving_operator.looks import Watcher
from kvserving_operator.settings import Settings
from kvserving_operator.tracing.export import exporting
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
        provider = exporting(settings.otlp_endpoint, settings.identity)
        tracer = DecisionTracer(provider)
        resources.callback(provider.shutdown)
        resources.callback(tracer.finish)
        watchers.append(tracer)
    return tuple(watchers)
