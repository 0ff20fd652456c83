"""A web application: notes with tags, and every open page shows the notes and the current cloud of tags.

To try it: `pip install 'combine-queue[web]'`, `uvicorn --app-dir docs/examples tag_app:app`, and two windows at
http://127.0.0.1:8000; ^C ends it. Run as a program, it prints the events that a page receives.
"""

import json
import re
import signal
import socket
import tempfile
import threading
from contextlib import asynccontextmanager, contextmanager
from html import escape
from urllib.parse import parse_qs, urlencode
from urllib.request import urlopen

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Route

import cq
from cq.intake import Documents
from cq.observers.top import CloudFollower, cloud_list, cloud_style, top
from cq.observers.worker import Worker

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Notes and their tags</title>
<style>
{style}
body {{ margin: 2rem auto; padding: 0 1rem; max-width: 48rem; font-family: system-ui, sans-serif;
  background: var(--page); color: var(--text); }}
</style>
<main>
<h1 id="title">Tags</h1>
<div id="cloud">{cloud}</div>
<h2>New note</h2>
<form method="post" action="/notes">
<p><label>Name <input name="name" required></label>
<p><label>Text <input name="text"></label>
<p><label>Tags, with commas between them <input name="tags"></label>
<p><button>Save</button>
</form>
<h2>Notes</h2>
<dl id="notes">
{notes}
</dl>
</main>
<script>
new EventSource("/events").onmessage = (event) => {{
  const [cloud, notes] = JSON.parse(event.data);
  document.getElementById("cloud").innerHTML = cloud;
  document.getElementById("notes").innerHTML = notes;
}};
</script>
</html>
"""
NOTES = b"note/", b"note0"  # the range of their keys
MAX_NOTES, MAX_TAGS, LONGEST = 50, 20, 50
MAX_BYTES, MAX_STREAMS = 64_000, 1_000  # of a form; open at once
HOSTS = ["127.0.0.1", "localhost"]  # the host names of the server in browsers

documents = Documents(cq.CombineQueue("tags"))


@cq.transactional
def save(tr, name, text, tags):
    """Store a note and its tags, and add the difference to the counts, in one transaction."""
    tr.set(NOTES[0] + name.encode(), json.dumps([text, sorted(tags)]).encode())
    documents.set(tr, name.encode(), dict.fromkeys(tags, 1))


@cq.transactional
def read_notes(tr):
    """Return the first notes, in the order of their names, as [(name, text, tags)]."""
    rows = tr.snapshot.get_range(*NOTES, limit=MAX_NOTES)
    return [(row.key.removeprefix(NOTES[0]).decode(), *json.loads(row.value)) for row in rows]


def notes_list(notes):
    """Return notes as HTML; all of it is input of users, so it is escaped."""
    return "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)} <small>{escape(', '.join(tags))}</small></dd>"
        for name, text, tags in notes
    )


async def shown_parts(state, cloud):
    """Return the parts of a page that follow the store, as HTML: the cloud and the notes."""
    return cloud_list(cloud), notes_list(await run_in_threadpool(read_notes, state.db))


async def page(request):
    cloud, notes = await shown_parts(request.state, request.state.follower.latest)
    return HTMLResponse(PAGE.format(style=cloud_style(), cloud=cloud, notes=notes))


async def body_of(request):
    """Return the body of a request; None if it is too large, after reading only its beginning."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            return None
    return body


async def save_note(request):
    body = await body_of(request)
    if body is None:
        return PlainTextResponse("a note has 64 kB at most", 413)
    form = parse_qs(body.decode(errors="replace"))
    name, text, typed = (form.get(field, [""])[0].strip() for field in ("name", "text", "tags"))
    tags = {tag.strip() for tag in typed.split(",")} - {""}
    if not 0 < len(name) <= LONGEST or len(tags) > MAX_TAGS or any(len(tag) > LONGEST for tag in tags):
        return PlainTextResponse("a note needs a name, and has at most 20 tags, all of 50 letters", 400)
    await run_in_threadpool(save, request.state.db, name, text, tags)
    return RedirectResponse("/", 303)


class EventStream(StreamingResponse):
    """A stream of events; `opened` contains it until it ends, also by an error."""

    def __init__(self, content, opened):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would keep events back
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self.opened = opened
        opened.add(self)

    async def __call__(self, scope, receive, send):
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.opened.discard(self)


async def events(request):
    """Send the newest cloud and all later ones; a page that reconnects sends its version, and gets the newer one."""
    follower, last = request.state.follower, request.headers.get("last-event-id", "")
    if len(request.state.streams) >= MAX_STREAMS:
        return PlainTextResponse("too many open pages: try again later", 503)

    async def stream():
        version = int(last) if last.isdecimal() and len(last) < 20 else 0  # versions are shorter
        while not follower.is_closed:
            cloud = await follower.wait_async(version, timeout=15)
            if cloud is None:
                yield ": nothing new\n\n"  # detects closed connections
            else:
                version = cloud.version
                yield f"id: {version}\ndata: {json.dumps(await shown_parts(request.state, cloud))}\n\n"

    return EventStream(stream(), request.state.streams)


class OwnPages:
    """Refuse requests from pages of other sites: browsers send the site of a page in `Origin`."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            await PlainTextResponse("this request comes from a page of another site", 403)(
                scope, receive, send
            )
        else:
            await self.app(scope, receive, send)


@contextmanager
def closed_on_signals(follower):
    """Close the follower on ^C or SIGTERM: uvicorn waits for open streams, and these end with the follower."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number, frame):
        # A handler must not acquire locks that the interrupted thread may hold.
        threading.Thread(target=follower.close).start()
        if callable(handlers[number]):
            handlers[number](number, frame)

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def make_app(store=None):
    """Return the application on a store; default: the store of $CQ_STORE."""

    @asynccontextmanager
    async def lifespan(app):
        db = cq.open(store)
        # With one bucket, pages see all changes of a note at once; for many notes per second, use more.
        spec = top(n=50, every=0.1)
        cq.configure(db, "tags", key=str, value=int, combiner="sum", observers=[spec], buckets=1)
        worker = Worker(db, queues=["tags"])  # for more load: run `cq worker tags`, several times
        working = threading.Thread(target=worker.run)
        working.start()
        try:
            with CloudFollower(db, "tags") as follower, closed_on_signals(follower):
                app.state.follower = follower
                yield {"db": db, "follower": follower, "streams": set()}
        finally:
            worker.stop()
            working.join()
            if hasattr(db, "close"):  # an embedded store
                db.close()

    routes = [Route("/", page), Route("/notes", save_note, methods=["POST"]), Route("/events", events)]
    # Check hosts, too: a foreign page whose name resolves to this machine has an origin equal to its host.
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(OwnPages)]
    return Starlette(routes=routes, lifespan=lifespan, middleware=guards)


app = make_app()


@contextmanager
def serving(app):
    """Serve the application, and yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        app.state.follower.close()  # ends the open streams: the server waits for them
        server.should_exit = True
        thread.join()
        listening.close()


def shown(stream, tag):
    """Return the words of a page, with their numbers, once it shows `tag`."""
    for line in stream:
        if line.startswith(b"data: "):
            cloud, _ = json.loads(line.removeprefix(b"data: "))
            words = [re.sub("<.*?>", "", item) for item in cloud.splitlines() if item.startswith("<li")]
            if tag in words:
                return words
    raise EOFError("the server has ended")


def show():
    """Serve, and save notes while a page is open."""
    with serving(make_app(f"embedded:{tempfile.mkdtemp()}/example.db")) as address:

        def post(**fields):
            urlopen(f"{address}/notes", urlencode(fields).encode(), timeout=20).close()

        post(name="monday", text="It rains.", tags="rain, <b>wet</b>")
        with urlopen(f"{address}/events", timeout=20) as stream:
            print(shown(stream, "rain 1"))
            post(name="tuesday", text="It still rains.", tags="rain")
            print(shown(stream, "rain 2"))
            post(name="monday", text="It rained.", tags="sun")
            print(shown(stream, "sun 1"))


if __name__ == "__main__":
    show()

# Prints:
# ['&lt;b&gt;wet&lt;/b&gt; 1', 'rain 1']
# ['rain 2', '&lt;b&gt;wet&lt;/b&gt; 1']
# ['rain 1', 'sun 1']
